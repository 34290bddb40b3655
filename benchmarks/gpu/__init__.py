"""Prove, tune and measure the kernels on a GPU: `python -m benchmarks.gpu`, see
benchmarks/README.md.
"""
