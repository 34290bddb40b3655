"""Mask R-CNN, Pola-PVT-T, COCO, 1x (12 epochs).

    bash tools/dist_train.sh configs/mask_rcnn_pola_pvt_t_1x.py 8    PVT's batch: 8 GPUs x 2 images

Augmentation (one scale), batch and drop path rate are those of PVT's detectors, with which the
baseline of the paper's table 2 was trained. Starts from the authors' ImageNet weights:
checkpoints/pola_pvt_t.pth if it exists, else they are downloaded. PVT's detectors were trained in
float32; `--amp` trains in fp16.

Expected box AP / mask AP: 40.4 / 37.4 (paper, table 2).
"""

_base_ = ['./_base_/mask_rcnn.py', 'mmdet::_base_/datasets/coco_instance.py', './_base_/coco_1x.py']

model = dict(
    backbone=dict(
        type='mmpola.PolaPVT',
        arch='tiny',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_pvt_tiny'),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
