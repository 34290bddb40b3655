"""Predict images with a detector, a segmenter or a classifier: find the files, predict, draw, write JSON."""
