"""Sequence classifier, PolaFormer (alpha = 5), LRA Text, 50,000 steps.

    python tools/train.py configs/lra_text_pola_a5.py    one GPU; batch 32

Trains from random weights. Needs data/lra/aclImdb/{train,test}/{neg,pos}/.
The best checkpoint by dev accuracy is evaluated on the test split at the end. `--amp` trains in
fp16, as in Skyformer.

Expected accuracy: 72.33 (paper, table 4).
"""

_base_ = './_base_/lra_text.py'

model = dict(backbone=dict(attention='pola', alpha=5))
