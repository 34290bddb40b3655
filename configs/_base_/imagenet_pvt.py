"""ImageNet-1k as published for Pola-PVT: 5 warm-up epochs, final learning rate 1e-5 per 1,024 images."""

_base_ = ['./imagenet.py']

warmup = 5

param_scheduler = _base_.param_scheduler
param_scheduler[0].end = warmup
param_scheduler[1].update(begin=warmup, T_max=_base_.epochs - warmup)
