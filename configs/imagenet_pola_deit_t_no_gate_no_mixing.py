"""ImageNet-1k classification, Pola-DeiT-T without gate and local mixing, ImageNet-1k, 300 epochs.

    bash tools/dist_train.sh configs/imagenet_pola_deit_t_no_gate_no_mixing.py 8    8 GPUs x 128 images

A row of the paper's table 3 with the settings of imagenet_pola_deit_t.py: polarity only. There is
no gate, and no convolution of the values is added to the result of attention. Needs
data/imagenet/train and data/imagenet/val with one folder per class. The authors train in float32;
`--amp` trains in fp16. `--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 68.1 (paper, table 3).
"""

_base_ = './_base_/imagenet.py'

model = dict(backbone=dict(type='mmpola.PolaDeiT', arch='tiny', gate=False, mixing=None))
