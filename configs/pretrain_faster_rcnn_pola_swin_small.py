"""Faster R-CNN, a small Pola-Swin, everyday photographs, 5,700 steps.

    python tools/dev/collect_photographs.py data/photographs --longer-side 480 \\
        --table tools/dev/everyday_photographs.csv
    python tools/dev/everyday_boxes.py data/photographs
    python tools/train.py configs/pretrain_faster_rcnn_pola_swin_small.py

The small detector of configs/faster_rcnn_pola_swin_small.py learns COCO's 80 classes from 4,842
photographs with true boxes (they are of COCO's val2017, on which it must not be judged). Its
backbone starts from weights that come with mmpola. Validation and test read 159 and 160 other
photographs. About 1.3 hours of one CPU core (OMP_NUM_THREADS=1).

It is made for few CPU hours. The network reads crops of 256 x 192 pixels from photographs of 192 to
384 pixels, and tests at 320 x 240. Half the regions of the small detector are sampled. On a CPU with
bfloat16 in hardware (AVX512-BF16 or AMX), `optim_wrapper.type = 'mmpola.BFloat16OptimWrapper'` is
faster; on one without, a step takes ten times as long. All classes share a box layer: few boxes teach
it, and a detector of other classes can start from it.
"""

_base_ = './faster_rcnn_pola_swin_small.py'

data_root = 'data/photographs/'
image_scale = (320, 240)
steps = 5_700
decay_begin = 3_900

model = dict(
    roi_head=dict(bbox_head=dict(num_classes=80, reg_class_agnostic=True)),
    train_cfg=dict(rcnn=dict(sampler=dict(num=32))),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=image_scale, ratio_range=(0.6, 1.2), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(256, 192)),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(4, 4)),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=image_scale)
dataset = dict(_delete_=True, type='CocoDataset', data_root=data_root)

train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        **dataset,
        ann_file='train.json',
        data_prefix=dict(img='coco/'),
        filter_cfg=dict(bbox_min_size=1),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    dataset=dict(
        **dataset,
        ann_file='val.json',
        data_prefix=dict(img='val/'),
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = dict(
    dataset=dict(
        **dataset,
        ann_file='test.json',
        data_prefix=dict(img='test/'),
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
val_evaluator = dict(classwise=False)
test_evaluator = dict(classwise=True)

optim_wrapper = dict(
    optimizer=dict(lr=8e-4),
    paramwise_cfg=dict(backbone_lr_mult=0.5),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=300),
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=0.01,
        by_epoch=False,
        begin=decay_begin,
        end=steps,
        T_max=steps - decay_begin,
    ),
]
train_cfg = dict(_delete_=True, type='mmpola.ExactIterLoop', max_iters=steps, val_interval=1900)
default_hooks = dict(
    logger=dict(interval=50),
    checkpoint=dict(by_epoch=False, interval=250),
    average=dict(
        type='EMAHook', ema_type='ExpMomentumEMA', momentum=1e-3, gamma=500, update_buffers=True
    ),
)
