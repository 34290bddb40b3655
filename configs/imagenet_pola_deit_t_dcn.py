"""ImageNet-1k classification, Pola-DeiT-T with deformable mixing, ImageNet-1k, 300 epochs.

    python tools/train.py configs/imagenet_pola_deit_t_dcn.py       one GPU; the learning rate follows the batch
    bash tools/dist_train.sh configs/imagenet_pola_deit_t_dcn.py 8  8 GPUs x 128 images

An ablation: the convolution of the values is a depth-wise deformable one. The convolution that computes its offsets
adds 1.0 M parameters.

Trains from random weights. Needs data/imagenet/train and data/imagenet/val with one folder per class. `--amp` trains in
fp16. `--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: not known to us (paper, table 3); ours: not yet run.
"""

_base_ = './_base_/imagenet_pvt.py'

model = dict(backbone=dict(type='mmpola.PolaDeiT', arch='tiny', mixing='dcn'))
