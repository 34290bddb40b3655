"""ImageNet-1k as the authors train Pola-PVT: 300 epochs, 5 of warm-up, and 10 of cool-down.

Source: cfgs/pola_pvt_*.yaml of the authors' repository, which says 300 epochs where the paper
(appendix A.2) says 400. The last 10 epochs train with the final learning rate. Gradients are not
clipped.
"""

_base_ = ['./imagenet.py']

warmup = 5
cooldown = 10

train_cfg = dict(max_epochs=_base_.epochs + cooldown)
optim_wrapper = dict(clip_grad=None)
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(
    warmup=warmup, end=_base_.epochs + cooldown, start_factor=2e-3, eta_min_ratio=2e-2
)
