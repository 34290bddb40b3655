"""E2: Pola-PVT, whose MLPs are chosen for the size of Pola-Swin."""

_base_ = './segment_random.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmpola.PolaPVT',
        arch=dict(
            embed_dims=(32, 64, 128, 256),
            depths=(1, 1, 2, 1),
            num_heads=(1, 2, 4, 8),
            mlp_ratios=(4, 4, 3, 2),
        ),
        pretrain_img_size=(128, 128),
        drop_path_rate=0.0,
    ),
)
