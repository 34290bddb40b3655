"""ImageNet-1k classification, PolaFormer++ b2, ImageNet-1k, 300 epochs.

    bash tools/dist_train.sh configs/imagenet_polaformer_pp_b2.py 8    the authors' batch: 8 GPUs x 256 images

Trains from random weights with the settings of the authors' cfgs/pola_b2.yaml. The figure is that
of their README. Needs data/imagenet/train and data/imagenet/val with one folder per class. The
authors train in float32; `--amp` trains in fp16. `--resume` continues a run that SIGTERM or SIGUSR1
stopped.

Expected top-1: 82.8 (PolaFormer++ README).
"""

_base_ = './_base_/imagenet_pp.py'

model = dict(backbone=dict(type='mmpola.PolaFormerPP', arch='b2'))
