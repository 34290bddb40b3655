"""ImageNet-1k classification, PolaFormer++ b2, ImageNet-1k, 300 epochs.

    python tools/train.py configs/imagenet_polaformer_pp_b2.py         one GPU; the learning rate follows the batch
    bash tools/dist_train.sh configs/imagenet_polaformer_pp_b2.py 8    the paper's batch: 8 GPUs x 128 images

Trains from random weights. Needs data/imagenet/train and data/imagenet/val with one folder per class. `--amp` trains in
fp16. `--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 82.8 (paper); ours: not yet run.
"""

_base_ = './_base_/imagenet_pp.py'

model = dict(backbone=dict(type='mmpola.PolaFormerPP', arch='b2'))
