"""COCO instances with the multi-scale crop of 3x schedules (paper, appendix A.2; the augmentation is DETR's).

Half of the images are resized to a short side of 480 ... 800 pixels; the others to 400 ... 600, cropped, and resized.
"""

_base_ = ['mmdet::_base_/datasets/coco_instance.py']

short_sides = [(side, 1333) for side in range(480, 801, 32)]

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
                        dict(
                            type='RandomChoiceResize', scales=[(400, 4200), (500, 4200), (600, 4200)], keep_ratio=True
                        ),
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
