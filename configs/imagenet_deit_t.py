"""ImageNet-1k classification, DeiT-T, ImageNet-1k, 300 epochs.

    bash tools/dist_train.sh configs/imagenet_deit_t.py 8    8 GPUs x 128 images

The softmax baseline of Pola-DeiT-T, trained from random weights with the same settings. Like
Pola-DeiT-T it averages all tokens, where the published DeiT-T reads a class token. Needs
data/imagenet/train and data/imagenet/val with one folder per class. `--amp` trains in fp16.
`--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 72.2 (DeiT's repository, with a class token).
"""

_base_ = './_base_/imagenet.py'

model = dict(backbone=dict(type='mmpola.PolaDeiT', arch='tiny', attn_types='S'))
