"""E7: the small Faster R-CNN on BCCD from the weights that come with mmpola."""

_base_ = '../../../configs/faster_rcnn_pola_swin_small.py'

custom_imports = dict(imports=['mmpola', 'benchmarks.experiments.baselines'])

# One process, so that its CPU time is that of the run.
one_process = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(**one_process)
val_dataloader = dict(**one_process)
test_dataloader = dict(**one_process)
randomness = dict(seed=0)
