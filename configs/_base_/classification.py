"""Image classification without optimizer and schedule: model, class folders, loops and hooks.

The training images are not augmented. For evaluation, images are resized to 256 x 256, whatever
their ratio, and the centre is cut out (`crop_mode='squash'`), as in data/build.py of the authors'
repository.
"""

_base_ = ['./runtime.py']

data_root = 'data/imagenet/'
image_size = 224

model = dict(
    type='mmpola.ImageClassifier',
    num_classes=1000,
    data_preprocessor=dict(
        type='mmpola.ClassificationPreprocessor',
        label_smoothing=0.1,
        channels_last=False,
    ),
)

train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='mmpola.ClassFolders',
        root=data_root + 'train',
        training=True,
        transform=dict(input_size=image_size, interpolation='bicubic'),
    ),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='mmpola.ClassFolders',
        root=data_root + 'val',
        classes=data_root + 'train',
        training=False,
        transform=dict(
            input_size=image_size, interpolation='bicubic', crop_pct=0.875, crop_mode='squash'
        ),
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='mmpola.Accuracy', topk=(1, 5))
test_evaluator = val_evaluator

train_cfg = dict(type='mmpola.ExactEpochLoop', val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

default_hooks = dict(checkpoint=dict(interval=1, max_keep_ckpts=3))
