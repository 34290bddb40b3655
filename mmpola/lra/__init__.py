"""The Long Range Arena on MMEngine: data sets of its five tasks, collation, a generator, encoder and classifier."""
