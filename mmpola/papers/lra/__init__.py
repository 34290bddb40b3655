"""The Long Range Arena on MMEngine: data sets of its five tasks, encoder and classifier."""
