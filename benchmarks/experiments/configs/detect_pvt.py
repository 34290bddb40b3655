"""E1: mmdet's PVT of the same depths, widths and MLPs as Pola-PVT."""

_base_ = './detect_random.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmpola.PlainPVT',
        embed_dims=32,
        num_layers=(1, 1, 2, 1),
        num_heads=(1, 2, 4, 8),
        mlp_ratios=(4, 4, 3, 2),
        pretrain_img_size=(192, 256),
        drop_path_rate=0.0,
    ),
)
