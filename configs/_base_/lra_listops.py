"""Long ListOps: nested operations on digits, up to 2,000 tokens, ten classes."""

_base_ = ['./lra.py']

data_root = 'data/lra/listops-1000'
lr = 1e-4
warmup = 1000

model = dict(
    type='mmpola.SequenceClassifier',
    backbone=dict(
        type='mmpola.SequenceEncoder',
        vocab_size=32,
        length=2048,
        mask='padding',  # Skyformer: 'zeros', which is the same here
    ),
    num_classes=10,
)
train_dataloader = dict(batch_size=32, dataset=dict(type='mmpola.ListOps', root=data_root))
val_dataloader = dict(batch_size=32, dataset=dict(type='mmpola.ListOps', root=data_root))
test_dataloader = dict(batch_size=32, dataset=dict(type='mmpola.ListOps', root=data_root))

optim_wrapper = dict(optimizer=dict(lr=lr))
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 25, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyLR', eta_min=lr / 25e4, by_epoch=False, begin=warmup - 1, end=_base_.steps),
    dict(type='PolyMomentum', eta_min=0.85, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyMomentum', eta_min=0.95, by_epoch=False, begin=warmup - 1, end=_base_.steps),
]
