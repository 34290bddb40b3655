"""The LightHam decoder (SegNeXt) on ADE20K's 150 classes; the config names the backbone.

It also names the backbone's channels. The decoder reads strides 8, 16 and 32, so the backbone returns only these: the norm of an unread
output would get no gradient, and distributed training would stop.
"""

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    backbone=dict(
        type='mmpola.PolaFormerPP',
        out_indices=(1, 2, 3),
        norm_eval=True,  # as the authors' backbone
    ),
    decode_head=dict(
        type='LightHamHead',
        in_index=[0, 1, 2],
        channels=512,
        ham_channels=512,
        ham_kwargs=dict(MD_S=1, MD_R=16, train_steps=6, eval_steps=7, inv_t=100, rand_init=True),
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='GN', num_groups=32, requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
