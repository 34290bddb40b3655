"""Which weights a run starts from: a checkpoint to resume, to load, or to replace."""
