"""The Long Range Arena on MMEngine: data sets of its five tasks, the collation of their batches, and generators."""

from mmpola.sequences.collate import sequence_collate
from mmpola.sequences.datasets import ByteText, GreyCIFAR, ListOps, Pathfinder, Retrieval

__all__ = ['ByteText', 'GreyCIFAR', 'ListOps', 'Pathfinder', 'Retrieval', 'sequence_collate']
