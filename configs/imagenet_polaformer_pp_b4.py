"""ImageNet-1k classification, PolaFormer++ b4, ImageNet-1k, 310 epochs.

    bash tools/dist_train.sh configs/imagenet_polaformer_pp_b4.py 8    the authors' batch: 8 GPUs x 128 images

Trains from random weights with the settings of the authors' cfgs/pola_b4.yaml. Their 300 epochs of
cosine include 5 of warm-up; 10 of cool-down follow. The figure is that of their README. Needs
data/imagenet/train and data/imagenet/val with one folder per class. The authors train in float32;
`--amp` trains in fp16. `--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 85.4 (PolaFormer++ README).
"""

_base_ = './_base_/imagenet_pp.py'

cooldown = 10

model = dict(backbone=dict(type='mmpola.PolaFormerPP', arch='b4'))
train_dataloader = dict(batch_size=128)
train_cfg = dict(max_epochs=_base_.epochs + cooldown)
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(
    warmup=5, end=_base_.epochs + cooldown, start_factor=2e-4, eta_min_ratio=2e-2
)
