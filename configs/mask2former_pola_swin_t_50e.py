"""Mask2Former, Pola-Swin-T, COCO, 50 epochs (368,750 steps).

    bash tools/dist_train.sh configs/mask2former_pola_swin_t_50e.py 8    Mask2Former's batch: 8 GPUs x 2 images

The model is mmdet's Mask2Former for instance segmentation, with large-scale jittering. The backbone
trains at a tenth of the learning rate, as in Mask2Former. Starts from the authors' ImageNet
weights: checkpoints/pola_swin_t.pth if it exists, else they are downloaded. `--amp` trains in fp16.
"""

_base_ = ['mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', './_base_/hooks.py']

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmpola.PolaSwin',
        arch='tiny',
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_tiny'),
    ),
    panoptic_head=dict(in_channels=[96, 192, 384, 768]),
    init_cfg=None,
)
# The base inherits the label maps of mmdet's panoptic config, which instance segmentation does not
# read.
train_dataloader = dict(dataset=dict(data_prefix=dict(_delete_=True, img='train2017/')))
val_dataloader = dict(dataset=dict(data_prefix=dict(_delete_=True, img='val2017/')))
test_dataloader = val_dataloader

no_decay = dict(decay_mult=0.0)
optim_wrapper = dict(
    constructor='mmpola.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(
        _delete_=True,
        decay_rate=1.0,
        backbone_lr_mult=0.1,
        custom_keys=dict(query_embed=no_decay, query_feat=no_decay, level_embed=no_decay),
    ),
)

# resumes after any step, as all training runs here
train_cfg = dict(type='mmpola.ExactIterLoop')
default_hooks = _base_.training_hooks
