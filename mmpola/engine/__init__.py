"""Training on MMEngine: configs, runs, resuming, loops, hooks, optimisers, logs."""
