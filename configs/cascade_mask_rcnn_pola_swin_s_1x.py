"""Cascade Mask R-CNN, Pola-Swin-S, COCO, 1x (12 epochs, multi-scale crop).

    bash tools/dist_train.sh configs/cascade_mask_rcnn_pola_swin_s_1x.py 8    8 GPUs x 2 images, as Swin's detectors

Augmentation, batch and drop path rate are those of Swin's detectors, whose rate is the one of their
3x schedule. Starts from the authors' ImageNet weights: checkpoints/pola_swin_s.pth if it exists,
else they are downloaded. Swin's detectors were trained in fp16, as `--amp` does.
"""

_base_ = [
    './_base_/cascade_mask_rcnn.py',
    './_base_/coco_instance_multiscale.py',
    './_base_/coco_1x.py',
]

model = dict(
    backbone=dict(
        type='mmpola.PolaSwin',
        arch='small',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_small'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
