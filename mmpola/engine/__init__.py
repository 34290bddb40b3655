"""Training on MMEngine: configs, runs, resuming, loops, hooks, optimizers, logs."""
