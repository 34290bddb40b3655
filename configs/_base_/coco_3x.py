"""The 3x schedule on COCO: 36 epochs, steps after 27 and 33, else like the 1x schedule.

The paper (appendix A.2) says three times 12 epochs; the steps are those of Swin's detectors and of
PolaFormer++.
"""

_base_ = ['./coco_1x.py']

train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
