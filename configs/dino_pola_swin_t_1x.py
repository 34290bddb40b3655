"""DINO, Pola-Swin-T, COCO, 1x (12 epochs).

    bash tools/dist_train.sh configs/dino_pola_swin_t_1x.py 8    DINO's batch: 8 GPUs x 2 images

The model is mmdet's DINO with four scales: the backbone returns strides 8, 16 and 32, and the neck
adds stride 64. The backbone trains at a tenth of the learning rate, as in DINO. Starts from the
authors' ImageNet weights: checkpoints/pola_swin_t.pth if it exists, else they are downloaded.
`--amp` trains in fp16.
"""

_base_ = ['mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', './_base_/hooks.py']

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmpola.PolaSwin',
        arch='tiny',
        drop_path_rate=0.2,
        out_indices=(1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_tiny'),
    ),
    neck=dict(in_channels=[192, 384, 768]),
)
optim_wrapper = dict(
    constructor='mmpola.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(_delete_=True, decay_rate=1.0, backbone_lr_mult=0.1),
)

# resumes after any step, as all training runs here
train_cfg = dict(type='mmpola.ExactEpochLoop')
default_hooks = _base_.training_hooks
