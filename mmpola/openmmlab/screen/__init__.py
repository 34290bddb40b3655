"""Console output of a run, its curves and the picture of its first batch."""
