"""Classification, Pola-Swin-nano, your own classes, 20 epochs from weights that come with mmpola.

A classifier that learns small photographs in minutes of one CPU core:

    python tools/train.py configs/finetune_pola_swin_nano.py --cfg-options model.num_classes=10

Needs data/finetune/train and data/finetune/val with one folder per class. Photographs are read at
96 x 96 pixels, which `crop` sets. docs/pretrain.md describes data and options.

All layers learn at one rate, because a network this small has much to learn anew. On 2,062
photographs of digits shown by hand, top-1 of the test split is 97.4 (three seeds,
docs/results.md).
"""

_base_ = './_base_/finetune.py'

crop = 96  # pixels
to_crop = dict(input_size=crop, crop_pct=1.0, crop_mode='center')

model = dict(
    backbone=dict(
        type='mmpola.PolaSwin',
        arch='nano',
        pretrain_img_size=crop,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_nano'),
    )
)
optim_wrapper = dict(
    constructor='mmpola.NoDecayOptimizerConstructor', optimizer=dict(lr=2e-3), paramwise_cfg=None
)
train_dataloader = dict(num_workers=2, dataset=dict(transform=dict(input_size=crop)))
val_dataloader = dict(num_workers=1, dataset=dict(transform=to_crop))
test_dataloader = val_dataloader
