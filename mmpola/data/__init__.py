"""Data sets of class folders, and checks of every data set of a config before training."""
