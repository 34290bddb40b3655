"""Predict images with a detector, a segmenter or a classifier: read, predict, draw, write."""
