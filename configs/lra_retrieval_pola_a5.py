"""Sequence classifier, PolaFormer (alpha = 5), LRA Retrieval, 50,000 steps.

    python tools/train.py configs/lra_retrieval_pola_a5.py    one GPU; batch 16

Trains from random weights. Needs data/lra/tsv_data/new_aan_pairs.{train,eval,test}.tsv.
The best checkpoint by dev accuracy is evaluated on the test split at the end. `--amp` trains in
fp16, as in Skyformer.

Expected accuracy: 80.37 (paper, table 4).
"""

_base_ = './_base_/lra_retrieval.py'

model = dict(backbone=dict(attention='pola', alpha=5))
