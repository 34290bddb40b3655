"""ImageNet-1k classification, Pola-DeiT-T with deformable mixing, ImageNet-1k, 300 epochs.

    bash tools/dist_train.sh configs/imagenet_pola_deit_t_dcn.py 8    8 GPUs x 128 images

A row of the paper's table 3 with the settings of imagenet_pola_deit_t.py: the convolution of the
values is a depth-wise deformable one. The convolution that computes its offsets adds 1.0 M
parameters. Needs data/imagenet/train and data/imagenet/val with one folder per class. The authors
train in float32; `--amp` trains in fp16. `--resume` continues a run that SIGTERM or SIGUSR1
stopped.

Expected top-1: 61.9 (paper, table 3).
"""

_base_ = './_base_/imagenet.py'

model = dict(backbone=dict(type='mmpola.PolaDeiT', arch='tiny', mixing='dcn'))
