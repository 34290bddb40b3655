"""RTMDet-L, Pola-Swin-T, COCO, 100 epochs.

    bash tools/dist_train.sh configs/rtmdet_l_pola_swin_t_100e.py 4    mmdet's batch: 4 GPUs x 32 images

Neck, head and schedule are those of mmdet's RTMDet-L with Swin-B; the backbone returns strides 8,
16 and 32. Starts from the authors' ImageNet weights: checkpoints/pola_swin_t.pth if it exists, else
they are downloaded. `--amp` trains in fp16.
"""

_base_ = ['mmdet::rtmdet/rtmdet_l_swin_b_4xb32-100e_coco.py', './_base_/hooks.py']

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
optim_wrapper = dict(constructor='mmpola.NoDecayOptimizerConstructor')
auto_scale_lr = dict(base_batch_size=128)

# resumes after any step, as all training runs here
train_cfg = dict(type='mmpola.ExactEpochLoop')
default_hooks = _base_.training_hooks
