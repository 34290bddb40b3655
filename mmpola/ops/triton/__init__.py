"""The `triton` backend: the equations as fused kernels for NVIDIA GPUs.

The table of backends imports only `backend.py`; triton itself is imported by the first call. mmpola/ops/README.md
explains the design of the kernels.
"""
