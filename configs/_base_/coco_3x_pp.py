"""The 3x schedule of PolaFormer++'s detectors with masks: 36 epochs, steps after 27 and 33.

Source: downstream/detection/configs/PolaPP of the authors' repository.
"""

_base_ = ['./coco_1x_pp.py']

train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
