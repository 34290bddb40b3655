"""ImageNet-1k classification, Pola-PVTv2-b1, ImageNet-1k, 310 epochs.

    bash tools/dist_train.sh configs/imagenet_pola_pvt_v2_b1.py 8    FLatten's batch: 8 GPUs x 128 images

Trains from random weights. The authors publish no settings for this model; these are those of
FLatten Transformer (cfgs/flatten_pvt_v2_b1.yaml), on whose code theirs is built, and equal their
cfgs/pola_pvt_t.yaml. The paper (appendix A.2) says 400 epochs with 20 of warm-up. Needs
data/imagenet/train and data/imagenet/val with one folder per class. The authors train in float32;
`--amp` trains in fp16. `--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 80.2 (paper, table 5).
"""

_base_ = './_base_/imagenet_pvt.py'

model = dict(backbone=dict(type='mmpola.PolaPVTv2', arch='b1'))
