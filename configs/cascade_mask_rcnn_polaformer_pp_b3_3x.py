"""Cascade Mask R-CNN, PolaFormer++ b3, COCO, 3x (36 epochs, multi-scale crop).

    bash tools/dist_train.sh configs/cascade_mask_rcnn_polaformer_pp_b3_3x.py 8    the authors' batch: 8 GPUs x 2 images

Settings are those of the authors' downstream/detection/configs/PolaPP, which have a model for
Cascade Mask R-CNN and no schedule; this is the one of their Mask R-CNN. Starts from the authors'
ImageNet weights in checkpoints/polaformer_pp_b3.pth; docs/weights.md says where they are. The
authors train in fp16, as `--amp` does.
"""

_base_ = [
    './_base_/cascade_mask_rcnn.py',
    './_base_/coco_instance_multiscale.py',
    './_base_/coco_3x_pp.py',
]

model = dict(
    backbone=dict(
        type='mmpola.PolaFormerPP',
        arch='b3',
        drop_path_rate=0.15,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://polaformer_pp_b3'),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
