"""Image: CIFAR-10 as sequences of 32 x 32 grey values, ten classes."""

_base_ = ['./lra.py']

data_root = 'data/lra/cifar-10-batches-py'
lr = 1e-4
warmup = 175

model = dict(
    type='mmpola.SequenceClassifier',
    backbone=dict(
        type='mmpola.SequenceEncoder',
        vocab_size=256,
        length=1024,
        mask='padding',  # Skyformer: 'zeros', which masks black pixels too
    ),
    num_classes=10,
)
train_dataloader = dict(batch_size=256, dataset=dict(type='mmpola.GreyCIFAR', root=data_root))
val_dataloader = dict(batch_size=256, dataset=dict(type='mmpola.GreyCIFAR', root=data_root))
test_dataloader = dict(batch_size=256, dataset=dict(type='mmpola.GreyCIFAR', root=data_root))

optim_wrapper = dict(optimizer=dict(lr=lr))
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 25, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyLR', eta_min=lr / 25e4, by_epoch=False, begin=warmup - 1, end=_base_.steps),
    dict(type='PolyMomentum', eta_min=0.85, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyMomentum', eta_min=0.95, by_epoch=False, begin=warmup - 1, end=_base_.steps),
]
train_cfg = dict(val_interval=50)
