"""Mask R-CNN, PolaFormer++ b2, COCO, 3x (36 epochs, multi-scale crop).

    bash tools/dist_train.sh configs/mask_rcnn_polaformer_pp_b2_3x.py 8    the authors' batch: 8 GPUs x 2 images

Settings are those of the authors' downstream/detection/configs/PolaPP. Starts from the authors'
ImageNet weights in checkpoints/polaformer_pp_b2.pth; docs/weights.md says where they are. The
authors train in fp16, as `--amp` does.
"""

_base_ = ['./_base_/mask_rcnn.py', './_base_/coco_instance_multiscale.py', './_base_/coco_3x_pp.py']

model = dict(
    backbone=dict(
        type='mmpola.PolaFormerPP',
        arch='b2',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://polaformer_pp_b2'),
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
