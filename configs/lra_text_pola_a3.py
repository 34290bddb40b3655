"""Sequence classifier, PolaFormer (alpha = 3), LRA Text, 50,000 steps.

    python tools/train.py configs/lra_text_pola_a3.py    one GPU; batch 32

Trains from random weights. Needs data/lra/aclImdb/{train,test}/{neg,pos}/.
The best checkpoint by dev accuracy is evaluated on the test split at the end. `--amp` trains in
fp16, as in Skyformer.

The gate's initial value (appendix A.4) is model.backbone.gate_init: kaiming (the default) 73.06,
zeros 72.17, normal 74.30, uniform 74.40, ones 70.70, for example

    python tools/train.py configs/lra_text_pola_a3.py --work-dir work_dirs/lra_text_normal \\
        --cfg-options model.backbone.gate_init=normal

Expected accuracy: 73.06 (paper, table 4).
"""

_base_ = './_base_/lra_text.py'

model = dict(backbone=dict(attention='pola', alpha=3))
