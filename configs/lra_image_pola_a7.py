"""Sequence classifier, PolaFormer (alpha = 7), LRA Image, 50,000 steps.

    python tools/train.py configs/lra_image_pola_a7.py    one GPU; batch 256

Trains from random weights. Needs data/lra/cifar-10-batches-py/{data_batch_1…5,test_batch}.
The best checkpoint by dev accuracy is evaluated on the test split at the end. `--amp` trains in
fp16, as in Skyformer.

Expected accuracy: 42.77 (paper, table 4).
"""

_base_ = './_base_/lra_image.py'

model = dict(backbone=dict(attention='pola', alpha=7))
