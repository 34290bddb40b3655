"""ImageNet-1k classification, Pola-DeiT-T, ImageNet-1k, 300 epochs.

    bash tools/dist_train.sh configs/imagenet_pola_deit_t.py 8    8 GPUs x 128 images

Trains from random weights. The authors publish no settings for this model; these are the defaults
of their config.py, which agree with the paper (appendix A.2) except for its 400 epochs. Needs
data/imagenet/train and data/imagenet/val with one folder per class. The authors train in float32;
`--amp` trains in fp16. `--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 74.6 (paper, table 3).
"""

_base_ = './_base_/imagenet.py'

model = dict(backbone=dict(type='mmpola.PolaDeiT', arch='tiny'))
