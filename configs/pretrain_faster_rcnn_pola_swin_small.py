"""Faster R-CNN, a small Pola-Swin, unlabelled photographs, 60,000 steps.

    python tools/dev/collect_photographs.py data/photographs --longer-side 480 \\
        --table tools/dev/everyday_photographs.csv
    python tools/dev/label_photographs.py checkpoints/picodet_s_416_coco.onnx \\
        data/photographs/coco --out data/photographs/train.json
    python tools/train.py configs/pretrain_faster_rcnn_pola_swin_small.py

The small detector of configs/faster_rcnn_pola_swin_small.py learns COCO's 80 classes from the boxes
of PicoDet-S, which label_photographs.py finds. Its backbone starts from weights that come with
mmpola; there are none of the whole detector yet. Validation needs photographs with true labels, in
COCO's format, as data/photographs/val.json and data/photographs/val/. The rate is constant after a
short warm-up and falls at the end: a run that goes on with more photographs loses nothing. About 9
hours of one CPU core (OMP_NUM_THREADS=1).
"""

_base_ = './faster_rcnn_pola_swin_small.py'

data_root = 'data/photographs/'
image_scale = (320, 240)
steps = 60_000
decay_begin = 50_000

model = dict(
    roi_head=dict(bbox_head=dict(num_classes=80, reg_class_agnostic=True)),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=image_scale, ratio_range=(0.7, 1.2), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(288, 288)),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=image_scale)
dataset = dict(_delete_=True, type='CocoDataset', data_root=data_root)

train_dataloader = dict(
    batch_size=8,
    num_workers=1,
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
test_dataloader = val_dataloader
val_evaluator = dict(classwise=False)
test_evaluator = dict(classwise=True)

optim_wrapper = dict(
    type='mmpola.BFloat16OptimWrapper',
    optimizer=dict(lr=1e-3),
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
train_cfg = dict(_delete_=True, type='mmpola.ExactIterLoop', max_iters=steps, val_interval=1250)
default_hooks = dict(
    logger=dict(interval=50),
    checkpoint=dict(by_epoch=False, interval=250),
    average=dict(
        type='EMAHook', ema_type='ExpMomentumEMA', momentum=1e-3, gamma=500, update_buffers=True
    ),
)
