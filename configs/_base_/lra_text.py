"""Text: IMDB reviews as up to 4,000 bytes, two classes; as published, dev is the test split."""

_base_ = ['./lra.py']

data_root = 'data/lra/aclImdb'
lr = 1e-4
warmup = 80

model = dict(
    type='mmpola.SequenceClassifier',
    backbone=dict(
        type='mmpola.SequenceEncoder',
        vocab_size=512,
        length=4096,
        mask='padding',  # Skyformer: 'zeros', which is the same here
    ),
    num_classes=2,
)
train_dataloader = dict(batch_size=32, dataset=dict(type='mmpola.ByteText', root=data_root))
val_dataloader = dict(batch_size=32, dataset=dict(type='mmpola.ByteText', root=data_root))
test_dataloader = dict(batch_size=32, dataset=dict(type='mmpola.ByteText', root=data_root))

optim_wrapper = dict(optimizer=dict(lr=lr))
param_scheduler = [
    dict(type='LinearLR', start_factor=1 / 25, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyLR', eta_min=lr / 25e4, by_epoch=False, begin=warmup - 1, end=_base_.steps),
    dict(type='PolyMomentum', eta_min=0.85, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyMomentum', eta_min=0.95, by_epoch=False, begin=warmup - 1, end=_base_.steps),
]
