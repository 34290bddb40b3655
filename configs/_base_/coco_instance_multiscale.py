"""COCO instances with the augmentation of Swin's detectors.

They use it in their 1x and 3x schedules, PolaFormer++ uses it in its 3x schedule. Source:
Swin-Transformer-Object-Detection, configs/swin; the augmentation is DETR's. Half of the
images are resized to a short side of 480 ... 800 pixels; the others to 400 ... 600, cropped, and
resized. The long side is at most 1333. The paper does not say how images are augmented.
"""

_base_ = ['mmdet::_base_/datasets/coco_instance.py']

short_sides = [(side, 1333) for side in range(480, 801, 32)]
crop_sides = [(400, 1333), (500, 1333), (600, 1333)]

train_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='RandomFlip', prob=0.5),
            dict(
                type='RandomChoice',
                transforms=[
                    [dict(type='RandomChoiceResize', scales=short_sides, keep_ratio=True)],
                    [
                        dict(type='RandomChoiceResize', scales=crop_sides, keep_ratio=True),
                        dict(
                            type='RandomCrop',
                            crop_type='absolute_range',
                            crop_size=(384, 600),
                            allow_negative_crop=True,
                        ),
                        dict(type='RandomChoiceResize', scales=short_sides, keep_ratio=True),
                    ],
                ],
            ),
            dict(type='PackDetInputs'),
        ]
    )
)
