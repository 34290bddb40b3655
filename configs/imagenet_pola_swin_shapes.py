"""Classification, a small Pola-Swin, generated shapes, 12 epochs.

A short run of the ImageNet training on generated images: a classifier for single shapes.

    python -m mmpola.apps.shapes data/shapes --images 600
    python tools/train.py configs/imagenet_pola_swin_shapes.py

All other settings are those of imagenet_pola_swin_t.py. Images are crops of 64 x 64 pixels with one
shape each.

Expected top-1 on held-out crops: not in the paper; ours: 30.6 (one CPU core, log).
"""

_base_ = './imagenet_pola_swin_t.py'

data_root = 'data/shapes/classes/'
image_size = 64
epochs = 12

model = dict(
    num_classes=6,
    data_preprocessor=dict(mixup=None),  # a blend of two shapes shows neither
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=32, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8)),
        pretrain_img_size=image_size,
        drop_path_rate=0.0,
    ),
)

train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    pin_memory=False,
    dataset=dict(
        root=data_root + 'train',
        transform=dict(
            _delete_=True,
            input_size=image_size,
            scale=(0.6, 1.0),
            ratio=(0.8, 1.25),
            vflip=0.5,
            color_jitter=0.4,
        ),
    ),
)
val_dataloader = dict(
    batch_size=32,
    num_workers=1,
    pin_memory=False,
    dataset=dict(
        root=data_root + 'val',
        classes=data_root + 'train',
        transform=dict(input_size=image_size, crop_pct=1.0),
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator

optim_wrapper = dict(optimizer=dict(lr=1e-3))
auto_scale_lr = dict(enable=False)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=epochs,
        T_max=epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=epochs, val_interval=3)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=3, max_keep_ckpts=1))
