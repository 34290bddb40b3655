"""Semantic FPN, Pola-PVT-T, ADE20K, 40,000 steps.

    bash tools/dist_train.sh configs/semantic_fpn_pola_pvt_t_40k.py 8    PVT's batch: 8 GPUs x 4 images

Batch, polynomial, test images and drop path rate are those of PVT's segmenters, with which the
baseline of the paper's table 2 was trained. Starts from the authors' ImageNet weights:
checkpoints/pola_pvt_t.pth if it exists, else they are downloaded. PVT's segmenters were trained in
float32; `--amp` trains in fp16.

Expected mIoU: 38.3 (paper, table 2).
"""

_base_ = ['./_base_/semantic_fpn.py', './_base_/ade20k_multiples.py', './_base_/ade20k_40k.py']

model = dict(
    backbone=dict(
        type='mmpola.PolaPVT',
        arch='tiny',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_pvt_tiny'),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
