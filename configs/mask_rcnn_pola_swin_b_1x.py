"""Mask R-CNN, Pola-Swin-B, COCO, 1x (12 epochs, multi-scale crop).

    bash tools/dist_train.sh configs/mask_rcnn_pola_swin_b_1x.py 8    8 GPUs x 2 images, as Swin's detectors

Augmentation, batch and drop path rate are those of Swin's detectors, whose rate is the one of their
Cascade Mask R-CNN. Starts from the authors' ImageNet weights: checkpoints/pola_swin_b.pth if it
exists, else they are downloaded. Swin's detectors were trained in fp16, as `--amp` does.
"""

_base_ = ['./_base_/mask_rcnn.py', './_base_/coco_instance_multiscale.py', './_base_/coco_1x.py']

model = dict(
    backbone=dict(
        type='mmpola.PolaSwin',
        arch='base',
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_base'),
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
