"""Training: the runner, its loops and seeds, checkpoints that are whole or not at all."""
