"""Sequence classifier, PolaFormer++, LRA Pathfinder, 50,000 steps.

    python tools/train.py configs/lra_pathfinder_polaformer_pp.py    one GPU; batch 128

Trains from random weights. Needs data/lra/pathfinder32/curv_contour_length_14/{imgs,metadata}.
The best checkpoint by dev accuracy is evaluated on the test split at the end. `--amp` trains in
fp16, as in Skyformer.
"""

_base_ = './_base_/lra_pathfinder.py'

model = dict(backbone=dict(attention='polaformer_pp'))
