"""Check and measure the kernels on a GPU: see benchmarks/README.md."""
