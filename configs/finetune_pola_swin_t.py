"""Classification, Pola-Swin-T, your own classes, 20 epochs from ImageNet weights.

    python tools/train.py configs/finetune_pola_swin_t.py --cfg-options model.num_classes=10

Needs data/finetune/train and data/finetune/val with one folder per class. The backbone starts from
checkpoints/pola_swin_t.pth if it exists, else from the authors' file, which is downloaded; the head
is new. `--amp` trains in fp16. Batches of 32 images; the learning rate follows the batch.
docs/pretrain.md describes data and options.
"""

_base_ = './_base_/finetune.py'

model = dict(
    backbone=dict(
        type='mmpola.PolaSwin',
        arch='tiny',
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_tiny'),
    )
)
