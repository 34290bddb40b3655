"""Readers of the Long Range Arena's official files, one module per task: each returns the `Source` of a split."""
