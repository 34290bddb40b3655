"""ImageNet-1k classification, Pola-Swin-B at 384, ImageNet-1k, 30 epochs from the weights of 224.

    python tools/train.py configs/imagenet_pola_swin_b_384.py         one GPU; the learning rate follows the batch
    bash tools/dist_train.sh configs/imagenet_pola_swin_b_384.py 8    8 GPUs x 64 images

Fine-tunes the weights of 224 with a softmax window of 12; position tables are resized. The weights are
checkpoints/pola_swin_b.pth if it exists, for example from a run of imagenet_pola_swin_b.py through
tools/convert_checkpoint.py, else the authors', which are downloaded. Needs data/imagenet/train and data/imagenet/val
with one folder per class. `--amp` trains in fp16.

Expected top-1: 84.7 (paper, table 1); ours: not yet run.
"""

_base_ = './_base_/imagenet_swin.py'

image_size = 384
epochs = 30
warmup = 5

model = dict(
    backbone=dict(type='mmpola.PolaSwin', arch='base', window_size=12, pretrain_img_size=image_size),
    init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_base'),
)

train_dataloader = dict(batch_size=64, dataset=dict(transform=dict(input_size=image_size)))
val_dataloader = dict(batch_size=64, dataset=dict(transform=dict(input_size=image_size, crop_pct=1.0)))
test_dataloader = val_dataloader

# Published: 2e-5 for 512 images; the learning rate scales with the batch from 1,024.
optim_wrapper = dict(optimizer=dict(lr=4e-5, weight_decay=1e-8))
param_scheduler = _base_.param_scheduler
param_scheduler[0].end = warmup
param_scheduler[1].update(begin=warmup, end=epochs, T_max=epochs - warmup)
train_cfg = dict(max_epochs=epochs)
