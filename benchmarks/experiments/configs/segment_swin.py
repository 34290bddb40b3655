"""E2: mmdet's Swin of the same depths and widths."""

_base_ = './segment_random.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmpola.PlainSwin',
        embed_dims=32,
        depths=(1, 1, 2, 1),
        num_heads=(1, 2, 4, 8),
        drop_path_rate=0.0,
    ),
)
