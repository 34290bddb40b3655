"""Metrics by class, names of result files, and drawings of an evaluation."""
