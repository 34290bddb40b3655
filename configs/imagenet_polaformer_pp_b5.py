"""ImageNet-1k classification, PolaFormer++ b5, ImageNet-1k, 310 epochs.

    bash tools/dist_train.sh configs/imagenet_polaformer_pp_b5.py 8    the batch of b4: 8 GPUs x 128 images

Trains from random weights with the settings of PolaFormer++ b4. The authors publish none for b5:
their cfgs/pola_b5.yaml seems to fine-tune (learning rate 2e-5 per 512 images, weight decay 1e-8,
warm-up of one epoch). The figure is that of their README. Needs data/imagenet/train and
data/imagenet/val with one folder per class. The authors train in float32; `--amp` trains in fp16.
`--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 85.6 (PolaFormer++ README).
"""

_base_ = './imagenet_polaformer_pp_b4.py'

model = dict(backbone=dict(arch='b5'))
