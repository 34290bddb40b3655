"""RetinaNet, Pola-PVT-T, COCO, 1x (12 epochs).

    bash tools/dist_train.sh configs/retinanet_pola_pvt_t_1x.py 8    PVT's batch: 8 GPUs x 2 images

Augmentation (one scale), batch and drop path rate are those of PVT's detectors, with which the
baseline of the paper's table 2 was trained. Starts from the authors' ImageNet weights:
checkpoints/pola_pvt_t.pth if it exists, else they are downloaded. PVT's detectors were trained in
float32; `--amp` trains in fp16.

Expected box AP: 39.5 (paper, table 2).
"""

_base_ = [
    './_base_/retinanet.py',
    'mmdet::_base_/datasets/coco_detection.py',
    './_base_/coco_1x.py',
]

model = dict(
    backbone=dict(
        type='mmpola.PolaPVT',
        arch='tiny',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_pvt_tiny'),
    ),
    neck=dict(in_channels=[128, 320, 512]),
)
