"""Cascade Mask R-CNN, Pola-Swin-T, COCO, 3x (36 epochs, multi-scale crop).

    bash tools/dist_train.sh configs/cascade_mask_rcnn_pola_swin_t_3x.py 8    8 GPUs x 2 images, as Swin's detectors

Augmentation, box heads, batch and drop path rate are those of Swin's detectors, with which the
baseline of the paper's table 2 was trained. Starts from the authors' ImageNet weights:
checkpoints/pola_swin_t.pth if it exists, else they are downloaded. Swin's detectors were trained in
fp16, as `--amp` does.

Expected box AP / mask AP: 51.1 / 44.4 (paper, table 2).
"""

_base_ = [
    './_base_/cascade_mask_rcnn.py',
    './_base_/coco_instance_multiscale.py',
    './_base_/coco_3x.py',
]

model = dict(
    backbone=dict(
        type='mmpola.PolaSwin',
        arch='tiny',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_tiny'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
