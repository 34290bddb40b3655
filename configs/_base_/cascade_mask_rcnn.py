"""Cascade Mask R-CNN with FPN and the box heads of Swin's detectors.

The config names the backbone and its channels.

Source: Swin-Transformer-Object-Detection, whose Swin-T with these heads is the baseline of
PolaFormer's table 2, and PolaPP_cas_rcnn.py of PolaFormer++. The three heads have four convolutions
and one linear layer, with SyncBN. They regress one box per class, and the loss is the GIoU of the
decoded boxes.
"""

_base_ = ['mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py']

model = dict(
    backbone=dict(_delete_=True, type='mmpola.PolaSwin'),
    roi_head=dict(
        bbox_head=[
            dict(
                type='ConvFCBBoxHead',
                num_shared_convs=4,
                num_shared_fcs=1,
                in_channels=256,
                conv_out_channels=256,
                fc_out_channels=1024,
                roi_feat_size=7,
                num_classes=80,
                bbox_coder=dict(
                    type='DeltaXYWHBBoxCoder',
                    target_means=[0.0, 0.0, 0.0, 0.0],
                    target_stds=target_stds,
                ),
                reg_class_agnostic=False,
                reg_decoded_bbox=True,
                norm_cfg=dict(type='SyncBN', requires_grad=True),
                loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
                loss_bbox=dict(type='GIoULoss', loss_weight=10.0),
            )
            for target_stds in (
                [0.1, 0.1, 0.2, 0.2],
                [0.05, 0.05, 0.1, 0.1],
                [0.033, 0.033, 0.067, 0.067],
            )
        ],
    ),
)
