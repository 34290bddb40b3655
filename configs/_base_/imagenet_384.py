"""ImageNet-1k at 384 x 384 from the weights of 224 x 224: 30 epochs, 5 of warm-up.

Source: cfgs/pola_swin_b_384.yaml of the authors' repository. AdamW has 2e-5 per 512 images, with
weight decay 1e-8. Position tables are resized; whole
images are evaluated.
"""

_base_ = ['./imagenet.py']

image_size = 384
epochs = 30
warmup = 5

train_dataloader = dict(batch_size=32, dataset=dict(transform=dict(input_size=image_size)))
val_dataloader = dict(dataset=dict(transform=dict(input_size=image_size, crop_pct=1.0)))
test_dataloader = dict(dataset=dict(transform=dict(input_size=image_size, crop_pct=1.0)))

optim_wrapper = dict(optimizer=dict(lr=2e-5, weight_decay=1e-8))
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(warmup=warmup, T_max=epochs, end=epochs)
train_cfg = dict(max_epochs=epochs)
