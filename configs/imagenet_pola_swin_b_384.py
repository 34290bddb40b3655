"""ImageNet-1k classification, Pola-Swin-B at 384, ImageNet-1k, 30 epochs from the weights of 224.

    bash tools/dist_train.sh configs/imagenet_pola_swin_b_384.py 8    the authors' batch: 8 GPUs x 32 images

Fine-tunes the weights of 224 with a softmax window of 12; position tables are resized on
loading. The authors' cfgs/pola_swin_b_384.yaml has these settings; the paper prints no result.
The weights are checkpoints/pola_swin_b.pth if it exists, for example from a run of
imagenet_pola_swin_b.py through tools/convert_checkpoint.py, else the authors', which are
downloaded. Needs data/imagenet/train and data/imagenet/val with one folder per class. The authors
train in float32; `--amp` trains in fp16. `--resume` continues a run that SIGTERM or SIGUSR1
stopped.
"""

_base_ = './_base_/imagenet_384.py'

model = dict(
    backbone=dict(type='mmpola.PolaSwin', arch='base', window_size=12, pretrain_img_size=384),
    init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_base'),
)
