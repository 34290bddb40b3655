"""Sequence classifier, linear attention (elu + 1), LRA Pathfinder, 50,000 steps.

    python tools/train.py configs/lra_pathfinder_linear.py    one GPU; batch 128

Trains from random weights. Needs data/lra/pathfinder32/curv_contour_length_14/{imgs,metadata}.
The best checkpoint by dev accuracy is evaluated on the test split at the end. `--amp` trains in
fp16, as in Skyformer.

Expected accuracy: 75.30 (paper, table 4, of the original leaderboard).
"""

_base_ = './_base_/lra_pathfinder.py'

model = dict(backbone=dict(attention='linear'))
