"""The `triton` backend: the equations as fused kernels for NVIDIA GPUs.

`support.py` says where it can run and is all that the table of backends imports; triton itself is imported by the first
call (or, in Triton's interpreter, on a CPU). What each kernel is shaped for stands in mmpola/ops/README.md.
"""
