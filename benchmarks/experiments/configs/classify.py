"""E4: a small Pola-PVT on CIFAR-10, three epochs; the leaves leave parts of its attention out.

The pictures are JPEG copies of the 60,000 of CIFAR-10, shown at 64 x 64 pixels. Every tenth one of
the training split is the validation split, of which CIFAR-10 has none.
"""

_base_ = ['../../../configs/_base_/classification.py', '../../../configs/_base_/adamw.py']

custom_imports = dict(
    imports=['mmpola', 'benchmarks.experiments.ablation', 'benchmarks.experiments.class_parts']
)

data_root = 'data/cifar10/'
image_size = 64
epochs = 3

model = dict(
    num_classes=10,
    backbone=dict(
        type='mmpola.AblatedPVT',
        arch=dict(
            embed_dims=(32, 64, 128, 256),
            depths=(1, 1, 2, 1),
            num_heads=(1, 2, 4, 8),
            mlp_ratios=(4, 4, 4, 4),
        ),
        pretrain_img_size=image_size,
        drop_path_rate=0.0,
    ),
)

# One process, so that its CPU time is that of the run.
one_process = dict(num_workers=0, persistent_workers=False, pin_memory=False)
train_dataloader = dict(
    **one_process,
    batch_size=64,
    dataset=dict(
        type='mmpola.ClassFoldersPart',
        every=10,
        places=(1, 2, 3, 4, 5, 6, 7, 8, 9),
        root=data_root + 'train',
        transform=dict(
            input_size=image_size, scale=(0.6, 1.0), ratio=(0.8, 1.25), color_jitter=None
        ),
    ),
)
whole_image = dict(input_size=image_size, crop_pct=1.0)
val_dataloader = dict(
    **one_process,
    dataset=dict(
        type='mmpola.ClassFoldersPart',
        every=10,
        places=(0,),
        root=data_root + 'train',
        classes=data_root + 'train',
        transform=whole_image,
    ),
)
test_dataloader = dict(
    **one_process,
    dataset=dict(root=data_root + 'test', classes=data_root + 'train', transform=whole_image),
)
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator

optim_wrapper = dict(
    optimizer=dict(lr=1e-3, weight_decay=0.05, fused=True), clip_grad=dict(max_norm=5.0)
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=300),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=epochs,
        T_max=epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=epochs)
default_hooks = dict(checkpoint=dict(interval=1, max_keep_ckpts=1))
