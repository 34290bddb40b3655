"""Read images as evaluation reads them, predict, draw, and save."""
