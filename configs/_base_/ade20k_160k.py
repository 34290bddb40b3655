"""The schedule of UperNet on ADE20K: 160,000 steps of 16 images, AdamW 2e-4, weight decay 1e-3.

The paper (appendix A.2) prints the optimizer, both rates and the number of steps. The 1,500 steps
of warm-up from 1e-6, the polynomial of power 1 and 8 GPUs x 2 images are those of
Swin-Transformer-Semantic-Segmentation, whose learning rate is 6e-5 and whose weight decay is 0.01.
All other settings are those of the 40,000-step schedule.
"""

_base_ = ['./ade20k_40k.py']

steps = 160000

train_cfg = dict(max_iters=steps, val_interval=steps // 10)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=steps),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
default_hooks = dict(checkpoint=dict(interval=steps // 10))
