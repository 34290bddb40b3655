"""Sequence classifier, linear attention (elu + 1), LRA Retrieval, 50,000 steps.

    python tools/train.py configs/lra_retrieval_linear.py    one GPU; batch 16

Trains from random weights. Needs data/lra/tsv_data/new_aan_pairs.{train,eval,test}.tsv.
The best checkpoint by dev accuracy is evaluated on the test split at the end. `--amp` trains in
fp16, as in Skyformer.

Expected accuracy: 53.09 (paper, table 4, of the original leaderboard).
"""

_base_ = './_base_/lra_retrieval.py'

model = dict(backbone=dict(attention='linear'))
