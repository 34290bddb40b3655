"""LightHam decoder, PolaFormer++ b1, ADE20K, 160,000 steps.

    bash tools/dist_train.sh configs/ham_polaformer_pp_b1_160k.py 8    the authors' batch: 8 GPUs x 8 images

Settings are those of the authors' downstream/segmentation/configs/PolaPP. Starts from the authors'
ImageNet weights in checkpoints/polaformer_pp_b1.pth; docs/weights.md says where they are. The
authors train in float32; `--amp` trains in fp16.
"""

_base_ = ['./_base_/light_ham.py', './_base_/ade20k_multiples.py', './_base_/ade20k_160k_pp.py']

model = dict(
    backbone=dict(
        type='mmpola.PolaFormerPP',
        arch='b1',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://polaformer_pp_b1'),
    ),
    decode_head=dict(in_channels=[64, 192, 384]),
)

train_dataloader = dict(batch_size=8)
auto_scale_lr = dict(base_batch_size=64)
