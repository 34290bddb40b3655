"""E7: ten digits shown by hand, 2,062 photographs, from the weights that come with mmpola.

Of 20 photographs of a digit, five are for the test and three for validation.
"""

_base_ = '../../../configs/finetune_pola_swin_nano.py'

custom_imports = dict(imports=['mmpola', 'benchmarks.experiments.class_parts'])

# One process, so that its CPU time is that of the run.
one_process = dict(num_workers=0, persistent_workers=False, pin_memory=False)
pictures = dict(type='mmpola.ClassFoldersPart', root='data/digits/Dataset', every=20)
train_dataloader = dict(
    **one_process, dataset=dict(**pictures, places=(2, 3, 5, 6, 7, 10, 11, 13, 14, 15, 18, 19))
)
val_dataloader = dict(**one_process, dataset=dict(**pictures, classes=None, places=(1, 9, 17)))
test_dataloader = dict(
    **one_process, dataset=dict(**pictures, classes=None, places=(0, 4, 8, 12, 16))
)
randomness = dict(seed=0)

from_random_weights = dict(
    # Linear layers this narrow learn slowly from the usual standard deviation of 0.02.
    init_cfg=dict(type='Xavier', layer='Linear', distribution='uniform'),
    backbone=dict(init_cfg=None),
)
