"""RetinaNet, PolaFormer++ b3, COCO, 1x (12 epochs).

    bash tools/dist_train.sh configs/retinanet_polaformer_pp_b3_1x.py 8    the authors' batch: 8 GPUs x 2 images

Settings are those of the authors' downstream/detection/configs/PolaPP. Every parameter has weight
decay there. Starts from the authors' ImageNet weights in checkpoints/polaformer_pp_b3.pth;
docs/weights.md says where they are. The authors train in fp16, as `--amp` does.
"""

_base_ = [
    './_base_/retinanet.py',
    'mmdet::_base_/datasets/coco_detection.py',
    './_base_/coco_1x.py',
]

model = dict(
    backbone=dict(
        type='mmpola.PolaFormerPP',
        arch='b3',
        drop_path_rate=0.15,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://polaformer_pp_b3'),
    ),
    neck=dict(in_channels=[128, 320, 512]),
)

optim_wrapper = dict(
    _delete_=True, type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4)
)
