"""ImageNet-1k classification, Pola-Swin-S at 384, ImageNet-1k, 30 epochs from the weights of 224.

    bash tools/dist_train.sh configs/imagenet_pola_swin_s_384.py 8    the batch of Pola-Swin-B: 8 GPUs x 32 images

Fine-tunes the weights of 224 with a softmax window of 12; position tables are resized on
as the authors do. The authors publish no settings for this model; these are those of their
cfgs/pola_swin_b_384.yaml, with the drop path rate of cfgs/pola_swin_s.yaml. The weights are
checkpoints/pola_swin_s.pth if it exists, for example from a run of imagenet_pola_swin_s.py through
tools/convert_checkpoint.py, else the authors', which are downloaded. Needs data/imagenet/train and
data/imagenet/val with one folder per class. The authors train in float32; `--amp` trains in fp16.
`--resume` continues a run that SIGTERM or SIGUSR1 stopped.

Expected top-1: 84.7 (paper, table 5).
"""

_base_ = './_base_/imagenet_384.py'

model = dict(
    backbone=dict(type='mmpola.PolaSwin', arch='small', window_size=12, pretrain_img_size=384),
    init_cfg=dict(type='Pretrained', checkpoint='mmpola://pola_swin_small'),
)
