"""Fine-tuning a classifier on your own classes: 20 epochs, one of warm-up, AdamW 5e-4 per 64 images.

It is made for pretrained weights, and some hundred to some ten thousand images. The new head learns
with the full rate; each block of the backbone has 0.8 times the rate of the one after it. The
augmentation is light: crops, flips, colours, label smoothing. The learning rate is scaled with the
batch (auto_scale_lr). The last epoch and the best one are kept.
"""

_base_ = ['./classification.py', './adamw.py']

data_root = 'data/finetune/'
epochs = 20
warmup = 1

model = dict(num_classes=10)
train_dataloader = dict(
    batch_size=32,
    num_workers=4,
    dataset=dict(root=data_root + 'train', transform=dict(scale=(0.35, 1.0), color_jitter=0.3)),
)
val_dataloader = dict(
    batch_size=32, num_workers=4, dataset=dict(root=data_root + 'val', classes=data_root + 'train')
)
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator

optim_wrapper = dict(
    constructor='mmpola.LayerDecayOptimizerConstructor',
    optimizer=dict(lr=5e-4, weight_decay=0.05),
    paramwise_cfg=dict(decay_rate=0.8),
    clip_grad=dict(max_norm=5.0),
)
auto_scale_lr = dict(enable=True, base_batch_size=64)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-2,
        by_epoch=True,
        begin=0,
        end=warmup,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=1e-2,
        by_epoch=True,
        begin=warmup,
        end=epochs,
        T_max=epochs - warmup,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=epochs)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(max_keep_ckpts=1))
