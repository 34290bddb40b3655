"""ImageNet-1k classification, Pola-Swin-T, ImageNet-1k, 300 epochs.

    bash tools/dist_train.sh configs/imagenet_pola_swin_t.py 8    the authors' batch: 8 GPUs x 128 images

Trains from random weights with the settings of the authors' cfgs/pola_swin_t.yaml. Their 300 epochs
include 20 of warm-up. The paper (appendix A.2) says 400 epochs with 20 of warm-up. Needs
data/imagenet/train and data/imagenet/val with one folder per class. The authors train in float32;
`--amp` trains in fp16. `--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 82.6 (the authors' README).
"""

_base_ = './_base_/imagenet.py'

model = dict(backbone=dict(type='mmpola.PolaSwin', arch='tiny'))
