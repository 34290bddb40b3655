"""ImageNet-1k classification, Pola-Swin-T, ImageNet-1k, 300 epochs.

    python tools/train.py configs/imagenet_pola_swin_t.py         one GPU; the learning rate follows the batch
    bash tools/dist_train.sh configs/imagenet_pola_swin_t.py 8    the paper's batch: 8 GPUs x 128 images

Trains from random weights. Needs data/imagenet/train and data/imagenet/val with one folder per class. `--amp` trains in
fp16. `--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 82.6 (paper, table 1); ours: not yet run.
"""

_base_ = './_base_/imagenet_swin.py'

model = dict(backbone=dict(type='mmpola.PolaSwin', arch='tiny'))
