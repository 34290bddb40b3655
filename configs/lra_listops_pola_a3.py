"""Sequence classifier, PolaFormer (alpha = 3), LRA ListOps, 50,000 steps.

    python tools/train.py configs/lra_listops_pola_a3.py    one GPU; batch 32

Trains from random weights. Needs data/lra/listops-1000/basic_{train,val,test}.tsv.
The best checkpoint by dev accuracy is evaluated on the test split at the end. `--amp` trains in
fp16, as in Skyformer.

Expected accuracy: 37.35 (paper, table 4).
"""

_base_ = './_base_/lra_listops.py'

model = dict(backbone=dict(attention='pola', alpha=3))
