"""Read a config, complete it, say what it contains, build its model."""
