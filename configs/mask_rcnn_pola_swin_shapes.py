"""Mask R-CNN, a small Pola-Swin, generated shapes, 5 epochs.

Training of the quick start: mask_rcnn_pola_swin_small.py at 192 x 160 pixels, the size of the
scenes. Shapes are far from photographs, so the backbone, which starts from weights that come with
mmpola, learns at the rate of the heads.

    python -m mmpola.openmmlab.shapes data/shapes --images 600
    python tools/train.py configs/mask_rcnn_pola_swin_shapes.py    one process on two CPU cores
    bash tools/dist_train.sh configs/mask_rcnn_pola_swin_shapes.py 2 \\
        --cfg-options train_dataloader.batch_size=1                two processes, as in the quick start
"""

_base_ = './mask_rcnn_pola_swin_small.py'

image_scale = (192, 160)  # (W, H) pixels, the size of the scenes
epochs = 5

model = dict(backbone=dict(pretrain_img_size=image_scale[::-1]))
_base_.train_dataloader.dataset.pipeline[2].scale = image_scale
_base_.val_dataloader.dataset.pipeline[1].scale = image_scale
_base_.test_dataloader.dataset.pipeline[1].scale = image_scale
optim_wrapper = dict(constructor='mmpola.NoDecayOptimizerConstructor', paramwise_cfg=None)
_base_.param_scheduler[1].update(end=epochs, T_max=epochs)
train_cfg = dict(max_epochs=epochs)
val_evaluator = dict(classwise=False)
test_evaluator = val_evaluator
default_hooks = dict(checkpoint=dict(save_best=None))  # the quick start takes the last one
