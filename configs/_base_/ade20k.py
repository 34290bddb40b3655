"""ADE20K (SceneParse150), crops of 512 x 512, 2 images per GPU as in Swin's segmenters."""

_base_ = ['mmseg::_base_/datasets/ade20k.py']

train_dataloader = dict(batch_size=2)
