"""ImageNet-1k classification, Pola-DeiT-T without polarity, ImageNet-1k, 300 epochs.

    bash tools/dist_train.sh configs/imagenet_pola_deit_t_no_polarity.py 8    8 GPUs x 128 images

An ablation that is no row of the paper, with the settings of imagenet_pola_deit_t.py: attention
reads the positive parts of queries and keys only, as linear attention with ReLU does, with the same
learned powers, mixing and gate. Needs data/imagenet/train and data/imagenet/val with one folder per
class. The authors train in float32; `--amp` trains in fp16. `--resume` continues a run that SIGTERM
or SIGUSR1 stopped.
"""

_base_ = './_base_/imagenet.py'

model = dict(backbone=dict(type='mmpola.PolaDeiT', arch='tiny', polarity=False))
