"""The Long Range Arena on MMEngine: data sets of its five tasks, collation, a generator, encoder and classifier."""

from mmpola.sequences.classifier import SequenceClassifier
from mmpola.sequences.collate import sequence_collate
from mmpola.sequences.encoder import SequenceEncoder
from mmpola.sequences.images import GreyCIFAR, Pathfinder
from mmpola.sequences.preprocessor import SequencePreprocessor
from mmpola.sequences.texts import ByteText, ListOps, Retrieval

__all__ = [
    'ByteText',
    'GreyCIFAR',
    'ListOps',
    'Pathfinder',
    'Retrieval',
    'SequenceClassifier',
    'SequenceEncoder',
    'SequencePreprocessor',
    'sequence_collate',
]
