"""ImageNet-1k classification, Swin-T, ImageNet-1k, 300 epochs.

    bash tools/dist_train.sh configs/imagenet_swin_t.py 8    8 GPUs x 128 images

The softmax baseline of Pola-Swin-T, trained from random weights with the same settings. Needs
data/imagenet/train and data/imagenet/val with one folder per class. `--amp` trains in fp16.
`--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 81.2 (Swin's repository).
"""

_base_ = './_base_/imagenet.py'

model = dict(backbone=dict(type='mmpola.PolaSwin', arch='tiny', attn_types='SSSS'))
