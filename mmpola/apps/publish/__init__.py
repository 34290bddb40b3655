"""Publishing a model: converting and exporting checkpoints, counting operations."""
