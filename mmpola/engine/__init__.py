"""Training on MMEngine: configs, resuming, loops, hooks, optimisers, logs."""
