"""Checks of the data that a config names, before a training touches it."""
