"""The paper's 3x schedule on COCO (appendix A.2): 36 epochs, steps at 27 and 33, else like the 1x schedule."""

_base_ = ['./coco_1x.py']

train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
