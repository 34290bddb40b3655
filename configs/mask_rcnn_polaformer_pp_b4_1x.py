"""Mask R-CNN, PolaFormer++ b4, COCO, 1x (12 epochs).

    bash tools/dist_train.sh configs/mask_rcnn_polaformer_pp_b4_1x.py 8    the authors' batch: 8 GPUs x 2 images

Settings are those of the authors' downstream/detection/configs/PolaPP. Starts from the authors'
ImageNet weights in checkpoints/polaformer_pp_b4.pth; docs/weights.md says where they are. The
authors train in fp16, as `--amp` does.
"""

_base_ = [
    './_base_/mask_rcnn.py',
    'mmdet::_base_/datasets/coco_instance.py',
    './_base_/coco_1x_pp.py',
]

model = dict(
    backbone=dict(
        type='mmpola.PolaFormerPP',
        arch='b4',
        drop_path_rate=0.4,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://polaformer_pp_b4'),
    ),
    neck=dict(in_channels=[96, 192, 384, 512]),
)
