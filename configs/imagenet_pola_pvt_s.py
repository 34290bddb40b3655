"""ImageNet-1k classification, Pola-PVT-S, ImageNet-1k, 310 epochs.

    bash tools/dist_train.sh configs/imagenet_pola_pvt_s.py 8    the authors' batch: 8 GPUs x 64 images

Trains from random weights with the settings of the authors' cfgs/pola_pvt_s.yaml. Their 300 epochs
of cosine include 5 of warm-up; 10 of cool-down follow. The paper (appendix A.2) says 400 epochs
with 20 of warm-up. Needs data/imagenet/train and data/imagenet/val with one folder per class. The
authors train in float32; `--amp` trains in fp16. `--resume` continues a run that SIGTERM or SIGUSR1
stopped.

Expected top-1: 81.9 (paper, table 5).
"""

_base_ = './_base_/imagenet_pvt.py'

model = dict(backbone=dict(type='mmpola.PolaPVT', arch='small'))
train_dataloader = dict(batch_size=64)
