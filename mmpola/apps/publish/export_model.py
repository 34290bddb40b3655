"""What a config's model exports: which outputs, and the normalisation in front of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mmengine.config import Config
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torch.utils import _pytree

from mmpola.apps.publish.flops import sample_of
from mmpola.backbones.base import Backbone
from mmpola.backbones.classifier import Classifier
from mmpola.engine.checkpoint import TrainingCheckpoint, load_model
from mmpola.engine.config import evaluation_transform

Outputs = dict[str, Tensor]
"""Name -> tensor, in the order of the exported program."""

DENSE = ('scores', 'boxes', 'factors')
"""What the maps are that a dense head of mmdet returns, in their order."""


def default_shape(cfg: Config) -> tuple[int, int]:
    """Return the height and width, in pixels, for which the config's task is exported if nothing else is asked for."""
    scope = cfg.get('default_scope')
    if scope in ('mmdet', 'mmseg'):
        return (800, 1344) if scope == 'mmdet' else (512, 512)
    size = evaluation_transform(cfg)['input_size']
    return (size, size) if isinstance(size, int) else tuple(size[-2:])


class ExportModel(nn.Module):
    """RGB pixels [B, 3, H, W], float32 in 0 ... 255 -> float32 outputs, whatever the dtype of the model.

    Args:
        model: the config's model.
        outputs: computes named outputs of the model for normalised images.
        mean, std: of the channels, in the order that the model reads, in 0 ... 255.
        reverse: whether the model reads BGR.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        outputs: Callable[[Any, Tensor], Outputs],
        mean: Tensor,
        std: Tensor,
        reverse: bool,
    ) -> None:
        super().__init__()
        self.model, self.outputs, self.reverse = model, outputs, reverse
        self.register_buffer('mean', mean.float().reshape(-1, 1, 1))
        self.register_buffer('std', std.float().reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Outputs:
        """Return the named outputs for images [B, 3, H, W]."""
        images = images.flip(1) if self.reverse else images
        images = (images - self.mean) / self.std
        dtype = next(self.model.parameters()).dtype
        return {name: x.float() for name, x in self.outputs(self.model, images.to(dtype)).items()}


def export_model(cfg: Config, checkpoint: TrainingCheckpoint, backbone_only: bool) -> ExportModel:
    """Build the config's model with the checkpoint's weights, and decide which outputs are exported.

    Args:
        cfg: of a classifier, a segmenter or a detector.
        checkpoint: compared with the config by `check_fits`.
        backbone_only: export the maps of the backbone.
    """
    model = load_model(cfg, checkpoint)
    replace_upsampling(model)
    preprocessor = model.data_preprocessor
    if getattr(preprocessor, '_enable_normalize', False):  # mmdet's and mmseg's
        mean, std = preprocessor.mean, preprocessor.std
        converts = getattr(
            preprocessor, '_channel_conversion', getattr(preprocessor, 'channel_conversion', False)
        )
        reverse = not converts  # their images are loaded as BGR
    else:
        transform = evaluation_transform(cfg)
        mean = 255 * torch.tensor(transform.get('mean', IMAGENET_DEFAULT_MEAN))
        std = 255 * torch.tensor(transform.get('std', IMAGENET_DEFAULT_STD))
        reverse = False
    if backbone_only:
        return ExportModel(model.backbone, backbone_maps, mean, std, reverse)
    return ExportModel(model, choose_outputs(model), mean, std, reverse)


def replace_upsampling(model: nn.Module) -> None:
    """Replace mmseg's Upsample layers by PyTorch's, which serve every size when exported.

    Theirs multiply the size by a float and round it by int(), which records a constant.
    """
    for parent in model.modules():
        layer: Any
        for name, layer in parent.named_children():
            if (
                type(layer).__module__.startswith('mmseg.')
                and type(layer).__name__ == 'Upsample'
                and not layer.size
            ):
                new = nn.Upsample(
                    scale_factor=layer.scale_factor,
                    mode=layer.mode,
                    align_corners=layer.align_corners,
                )
                setattr(parent, name, new)


def choose_outputs(model: Any) -> Callable[[Any, Tensor], Outputs]:
    """Return the function that computes the exported outputs of this kind of model."""
    if isinstance(model, Classifier) or hasattr(model, 'decode_head'):
        return logits
    if decodes_as_mmdet(getattr(model, 'bbox_head', None)):
        return dense_boxes
    if type(getattr(model, 'rpn_head', None)).__name__ == 'RPNHead':
        return proposals
    return raw_outputs


def backbone_maps(backbone: Backbone, images: Tensor) -> Outputs:
    """Compute map0, map1 ...: the maps [B, C_i, H / s_i, W / s_i] of the backbone's `out_indices`."""
    return {
        f'map{index}': x for index, x in zip(backbone.out_indices, backbone(images), strict=True)
    }


def logits(model: Any, images: Tensor) -> Outputs:
    """Compute a classifier's logits [B, classes], or a segmenter's [B, classes, h, w] before they are resized."""
    return {'logits': model(images, mode='tensor')}


def dense_boxes(model: Any, images: Tensor) -> Outputs:
    """Compute a dense detector's boxes [B, P, 4] and scores [B, P, classes] of all P priors, before NMS."""
    boxes, scores = decode(model.bbox_head, model.bbox_head(model.extract_feat(images)))
    return {'boxes': boxes, 'scores': scores}


def proposals(model: Any, images: Tensor) -> Outputs:
    """Compute what the RoI heads of a two-stage detector read: the neck's maps, and all proposals before NMS.

    Returns:
        map0, map1 ... [B, C, h_i, w_i], from the finest; boxes [B, P, 4] and scores [B, P, 1] of
        all P anchors.
    """
    maps = model.extract_feat(images)
    boxes, scores = decode(model.rpn_head, model.rpn_head(maps))
    return {f'map{level}': x for level, x in enumerate(maps)} | {'boxes': boxes, 'scores': scores}


def raw_outputs(model: Any, images: Tensor) -> Outputs:
    """Compute the tensors that the model returns in mode 'tensor', named by their places in its tuples and lists.

    A dense head returns scores, boxes and in some heads factors of the scores, each with one map
    per level: scores0, scores1 ..., boxes0 ... Other tensors are output0, or output1_2 for the
    third of the second list.
    """
    samples = [sample_of(*images.shape[2:]) for _ in range(images.shape[0])]
    found = model(images, samples, mode='tensor')
    dense = hasattr(model, 'bbox_head') and not hasattr(model, 'decoder')
    named = {}
    for path, x in _pytree.tree_flatten_with_path(found)[0]:
        if not isinstance(x, Tensor):
            continue
        places = [re.sub(r'\W', '', str(key)) for key in path]
        if dense and len(places) == 2:
            named[DENSE[int(places[0])] + places[1]] = x
        else:
            named['output' + '_'.join(places)] = x
    return named


def decodes_as_mmdet(head: Any) -> bool:
    """Whether a dense head makes boxes and scores by mmdet's `BaseDenseHead`, whose equations `decode` has."""
    methods = ('predict_by_feat', '_predict_by_feat_single')
    return head is not None and all(
        getattr(getattr(head, name, None), '__qualname__', '') == f'BaseDenseHead.{name}'
        for name in methods
    )


def decode(head: Any, outputs: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """Turn the maps of a dense head into boxes and scores, as mmdet does before it selects the best.

    Args:
        head: dense head of mmdet with `prior_generator` and `bbox_coder`.
        outputs: its scores [B, A * classes, h_i, w_i], its box predictions [B, A * 4, h_i, w_i]
            and, in some heads, factors of the scores [B, A, h_i, w_i]; one tensor per level each.

    Returns:
        boxes [B, P, 4], (x1, y1, x2, y2) in pixels, not clipped to the image; scores [B, P,
        classes] in 0 ... 1. Float32, since float16 cannot tell pixels beyond 2048 apart.
    """
    predictions = [[x.float() for x in maps] for maps in outputs]
    classes, deltas, *factors = predictions
    priors = head.prior_generator.grid_priors(
        [x.shape[-2:] for x in classes], dtype=torch.float32, device=classes[0].device
    )
    scores = _per_prior(classes, head.cls_out_channels)
    scores = scores.sigmoid() if head.use_sigmoid_cls else scores.softmax(-1)[..., :-1]
    if factors:
        scores = scores * _per_prior(factors[0], 1).sigmoid()
    batch = scores.shape[0]
    flat = _per_prior(deltas, head.bbox_coder.encode_size).flatten(0, 1)
    boxes = head.bbox_coder.decode(torch.cat(priors).repeat(batch, 1), flat)
    return boxes.unflatten(0, (batch, -1)), scores


def _per_prior(maps: Sequence[Tensor], channels: int) -> Tensor:
    """Maps [B, A * channels, h_i, w_i] of all levels -> [B, P, channels], in the order of mmdet's priors."""
    return torch.cat(
        [x.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, channels)) for x in maps], dim=1
    )
