"""Data sets of class folders, and the checks of every data set before a training."""

from mmpola.data.class_folders import ClassFolders

__all__ = ['ClassFolders']
