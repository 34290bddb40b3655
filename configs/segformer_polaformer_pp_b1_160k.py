"""SegFormer decoder, PolaFormer++ b1, ADE20K, 160,000 steps.

    bash tools/dist_train.sh configs/segformer_polaformer_pp_b1_160k.py 8    SegFormer's batch: 8 GPUs x 2 images

Starts from the authors' ImageNet weights in checkpoints/polaformer_pp_b1.pth; docs/weights.md says
where they are. `--amp` trains in fp16. The schedule of PolaFormer++ on ADE20K is also SegFormer's.
"""

_base_ = ['./_base_/segformer.py', './_base_/ade20k.py', './_base_/ade20k_160k_pp.py']

model = dict(
    backbone=dict(
        arch='b1',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://polaformer_pp_b1'),
    ),
    decode_head=dict(in_channels=[32, 64, 192, 384]),
)
