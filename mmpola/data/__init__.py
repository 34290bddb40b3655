"""Data sets of class folders, and checks of every data set of a config before training."""

from mmpola.data.class_folders import ClassFolders

__all__ = ['ClassFolders']
