"""E7: the small Semantic FPN on CamVid, 3,000 steps, from the weights that come with mmpola.

Void, which CamVid stores as label 11, counts neither in the loss nor in the metric.
"""

_base_ = '../../../configs/semantic_fpn_pola_swin_small.py'

custom_imports = dict(
    imports=['mmpola', 'benchmarks.experiments.baselines', 'benchmarks.experiments.kept_areas']
)

void = 11
classes = (
    'sky',
    'building',
    'pole',
    'road',
    'pavement',
    'tree',
    'sign',
    'fence',
    'car',
    'pedestrian',
    'bicyclist',
)
palette = [
    [128, 128, 128],
    [128, 0, 0],
    [192, 192, 128],
    [128, 64, 128],
    [60, 40, 222],
    [128, 128, 0],
    [192, 128, 128],
    [64, 64, 128],
    [64, 0, 128],
    [64, 64, 0],
    [0, 128, 192],
]

model = dict(
    data_preprocessor=dict(seg_pad_val=void),
    decode_head=dict(num_classes=len(classes), ignore_index=void),
)

dataset = dict(
    data_root='data/camvid/',
    metainfo=dict(classes=classes, palette=palette),
    img_suffix='.png',
    ignore_index=void,
)
_base_.train_pipeline[3].ignore_index = void
# One process, so that its CPU time is that of the run.
one_process = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(
    **one_process,
    dataset=dict(
        **dataset,
        data_prefix=dict(img_path='train', seg_map_path='trainannot'),
        pipeline=_base_.train_pipeline,
    ),
)
val_dataloader = dict(
    **one_process,
    dataset=dict(**dataset, data_prefix=dict(img_path='val', seg_map_path='valannot')),
)
test_dataloader = dict(
    **one_process,
    dataset=dict(**dataset, data_prefix=dict(img_path='test', seg_map_path='testannot')),
)
val_evaluator = dict(ignore_index=void)
test_evaluator = dict(type='KeptIoUMetric', ignore_index=void)

default_hooks = dict(checkpoint=dict(interval=250))
randomness = dict(seed=0)
