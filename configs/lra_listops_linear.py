"""Sequence classifier, linear attention (elu + 1), LRA ListOps, 50,000 steps.

    python tools/train.py configs/lra_listops_linear.py    one GPU; batch 32

Trains from random weights. Needs data/lra/listops-1000/basic_{train,val,test}.tsv.
The best checkpoint by dev accuracy is evaluated on the test split at the end. `--amp` trains in
fp16, as in Skyformer.

Expected accuracy: 16.13 (paper, table 4, of the original leaderboard).
"""

_base_ = './_base_/lra_listops.py'

model = dict(backbone=dict(attention='linear'))
