"""UperNet, Pola-Swin-S, ADE20K, 160,000 steps.

    bash tools/dist_train.sh configs/upernet_pola_swin_s_160k.py 8    the batch of Swin's segmenters: 8 GPUs x 2 images

Batch, warm-up, polynomial and drop path rate are those of Swin's segmenters, with which the
baseline of the paper's table 2 was trained. Starts from the authors' ImageNet weights:
checkpoints/pola_swin_s.pth if it exists, else they are downloaded. Swin's segmenters were trained
in float32; `--amp` trains in fp16.
"""

_base_ = ['./_base_/upernet.py', './_base_/ade20k.py', './_base_/ade20k_160k.py']

model = dict(
    backbone=dict(
        type='mmpola.PolaSwin',
        arch='small',
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_small'),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
