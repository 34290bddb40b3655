"""ImageNet-1k classification, Pola-DeiT-T without local mixing, ImageNet-1k, 300 epochs.

    bash tools/dist_train.sh configs/imagenet_pola_deit_t_no_mixing.py 8    8 GPUs x 128 images

An ablation that is no row of the paper, with the settings of imagenet_pola_deit_t.py: no depth-wise
convolution of the values is added to the result of attention. Needs data/imagenet/train and
data/imagenet/val with one folder per class. The authors train in float32; `--amp` trains in fp16.
`--resume` continues a run that SIGTERM or SIGUSR1 stopped.
"""

_base_ = './_base_/imagenet.py'

model = dict(backbone=dict(type='mmpola.PolaDeiT', arch='tiny', mixing=None))
