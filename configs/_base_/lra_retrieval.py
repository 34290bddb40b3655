"""Retrieval: pairs of papers as up to 4,000 bytes each, of which one cites the other or not."""

_base_ = ['./lra.py']

data_root = 'data/lra/tsv_data'
lr = 2e-4
warmup = 800

model = dict(
    type='mmpola.SequenceClassifier',
    backbone=dict(
        type='mmpola.SequenceEncoder',
        vocab_size=512,
        length=4096,
        mask='padding',  # Skyformer: 'zeros', which is the same here
    ),
    num_classes=2,
    paired=True,
)
train_dataloader = dict(batch_size=16, dataset=dict(type='mmpola.Retrieval', root=data_root))
val_dataloader = dict(batch_size=16, dataset=dict(type='mmpola.Retrieval', root=data_root))
test_dataloader = dict(batch_size=16, dataset=dict(type='mmpola.Retrieval', root=data_root))

optim_wrapper = dict(optimizer=dict(lr=lr))
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 25, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyLR', eta_min=lr / 25e4, by_epoch=False, begin=warmup - 1, end=_base_.steps),
    dict(type='PolyMomentum', eta_min=0.85, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyMomentum', eta_min=0.95, by_epoch=False, begin=warmup - 1, end=_base_.steps),
]
train_cfg = dict(val_interval=1000)
