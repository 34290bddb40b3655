"""ImageNet-1k as published for Pola-Swin: gradients are clipped to a norm of 5."""

_base_ = ['./imagenet.py']

optim_wrapper = dict(clip_grad=dict(max_norm=5.0))
