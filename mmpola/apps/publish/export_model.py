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

from mmpola.apps.publish.flops import image_metadata
from mmpola.backbones.base import Backbone
from mmpola.backbones.classifier import Classifier
from mmpola.classification.data_config import evaluation_transform
from mmpola.engine.training_checkpoint import TrainingCheckpoint, load_model

Outputs = dict[str, Tensor]
"""Name -> tensor, in the order of the exported program."""

DENSE_HEAD_OUTPUTS = ('scores', 'boxes', 'factors')
"""What the maps are that a dense head of mmdet returns, in their order."""


def default_shape(cfg: Config) -> tuple[int, int]:
    """Return the height and width, in pixels, for which a config's model is exported by default."""
    scope = cfg.get('default_scope')
    if scope == 'mmdet':
        return (800, 1344)
    if scope == 'mmseg':
        return (512, 512)
    size = evaluation_transform(cfg)['input_size']
    if isinstance(size, int):
        return (size, size)
    return tuple(size[-2:])


class ExportModel(nn.Module):
    """RGB pixels [B, 3, H, W], float32 in 0 ... 255 -> named float32 outputs.

    Args:
        model: the config's model, of any dtype.
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
        self.model = model
        self.outputs = outputs
        self.reverse = reverse
        self.register_buffer('mean', mean.float().reshape(-1, 1, 1))
        self.register_buffer('std', std.float().reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Outputs:
        """Return the named outputs for images [B, 3, H, W]."""
        if self.reverse:
            images = images.flip(1)
        images = (images - self.mean) / self.std
        dtype = next(self.model.parameters()).dtype
        outputs = self.outputs(self.model, images.to(dtype))
        return {name: x.float() for name, x in outputs.items()}


def export_model(cfg: Config, checkpoint: TrainingCheckpoint, backbone_only: bool) -> ExportModel:
    """Build the config's model with the checkpoint's weights, and decide what is exported.

    Args:
        cfg: config of a classifier, a segmenter or a detector.
        checkpoint: compared with the config by `check_fits`.
        backbone_only: export the maps of the backbone.
    """
    model = load_model(cfg, checkpoint)
    replace_upsampling(model)
    preprocessor = model.data_preprocessor
    if getattr(preprocessor, '_enable_normalize', False):  # mmdet's and mmseg's
        mean = preprocessor.mean
        std = preprocessor.std
        if hasattr(preprocessor, '_channel_conversion'):  # mmdet's
            converts_to_rgb = preprocessor._channel_conversion
        else:
            converts_to_rgb = getattr(preprocessor, 'channel_conversion', False)
        reverse = not converts_to_rgb  # their images are loaded as BGR
    else:
        transform = evaluation_transform(cfg)
        mean = 255 * torch.tensor(transform.get('mean', IMAGENET_DEFAULT_MEAN))
        std = 255 * torch.tensor(transform.get('std', IMAGENET_DEFAULT_STD))
        reverse = False
    if backbone_only:
        return ExportModel(model.backbone, backbone_maps, mean, std, reverse)
    return ExportModel(model, outputs_of(model), mean, std, reverse)


def replace_upsampling(model: nn.Module) -> None:
    """Replace mmseg's Upsample layers by PyTorch's, which serve every size when exported.

    Theirs multiply the size by a float and round it by int(), which records a constant.
    """
    for parent in model.modules():
        layer: Any
        for name, layer in parent.named_children():
            layer_class = type(layer)
            is_mmseg = layer_class.__module__.startswith('mmseg.')
            if is_mmseg and layer_class.__name__ == 'Upsample' and not layer.size:
                replacement = nn.Upsample(
                    scale_factor=layer.scale_factor,
                    mode=layer.mode,
                    align_corners=layer.align_corners,
                )
                setattr(parent, name, replacement)


def outputs_of(model: Any) -> Callable[[Any, Tensor], Outputs]:
    """Return the function that computes the exported outputs of this kind of model."""
    if isinstance(model, Classifier) or hasattr(model, 'decode_head'):
        return logits
    if decodes_as_mmdet(getattr(model, 'bbox_head', None)):
        return dense_boxes
    if type(getattr(model, 'rpn_head', None)).__name__ == 'RPNHead':
        return proposals
    return raw_outputs


def backbone_maps(backbone: Backbone, images: Tensor) -> Outputs:
    """Compute map0, map1 ...: maps [B, C_i, H / s_i, W / s_i] of the backbone's `out_indices`."""
    maps = backbone(images)
    return {f'map{index}': x for index, x in zip(backbone.out_indices, maps, strict=True)}


def logits(model: Any, images: Tensor) -> Outputs:
    """Compute logits: [B, classes] of a classifier, [B, classes, h, w] of a segmenter.

    A segmenter resizes them to the image afterwards.
    """
    return {'logits': model(images, mode='tensor')}


def dense_boxes(model: Any, images: Tensor) -> Outputs:
    """Compute boxes [B, P, 4] and scores [B, P, classes] of all P priors, before NMS."""
    boxes, scores = decode_dense_head(model.bbox_head, model.bbox_head(model.extract_feat(images)))
    return {'boxes': boxes, 'scores': scores}


def proposals(model: Any, images: Tensor) -> Outputs:
    """Compute what the RoI heads of a two-stage detector read: maps, and proposals before NMS.

    Returns:
        map0, map1 ... [B, C, h_i, w_i] of the neck, from the finest; boxes [B, P, 4] and scores
        [B, P, 1] of all P anchors.
    """
    maps = model.extract_feat(images)
    boxes, scores = decode_dense_head(model.rpn_head, model.rpn_head(maps))
    outputs = {f'map{level}': x for level, x in enumerate(maps)}
    outputs['boxes'] = boxes
    outputs['scores'] = scores
    return outputs


def raw_outputs(model: Any, images: Tensor) -> Outputs:
    """Compute what the model returns in mode 'tensor', named by the places in its tuples and lists.

    A dense head returns scores, boxes and in some heads factors of the scores, each with one map
    per level: scores0, scores1 ..., boxes0 ... Other tensors are output0, or output1_2 for the
    third of the second list.
    """
    batch, _, height, width = images.shape
    samples = [image_metadata(height, width) for _ in range(batch)]
    found = model(images, samples, mode='tensor')
    has_dense_head = hasattr(model, 'bbox_head') and not hasattr(model, 'decoder')
    outputs = {}
    for path, x in _pytree.tree_flatten_with_path(found)[0]:
        if not isinstance(x, Tensor):
            continue
        places = [re.sub(r'\W', '', str(key)) for key in path]
        if has_dense_head and len(places) == 2:
            name = DENSE_HEAD_OUTPUTS[int(places[0])] + places[1]
        else:
            name = 'output' + '_'.join(places)
        outputs[name] = x
    return outputs


def decodes_as_mmdet(head: Any) -> bool:
    """Whether a dense head makes boxes and scores by the equations of `decode_dense_head`.

    These are the equations of mmdet's `BaseDenseHead`.
    """
    for name in ('predict_by_feat', '_predict_by_feat_single'):
        method = getattr(head, name, None)
        if getattr(method, '__qualname__', '') != f'BaseDenseHead.{name}':
            return False
    return True


def decode_dense_head(head: Any, outputs: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """Turn the maps of a dense head into boxes and scores, as mmdet does before NMS.

    Args:
        head: dense head of mmdet with `prior_generator` and `bbox_coder`.
        outputs: its scores [B, A * classes, h_i, w_i], its box predictions [B, A * 4, h_i, w_i]
            and, in some heads, factors of the scores [B, A, h_i, w_i]; one tensor per level each.

    Returns:
        boxes [B, P, 4], (x1, y1, x2, y2) in pixels, not clipped to the image; scores [B, P,
        classes] in 0 ... 1. Float32, since float16 cannot tell pixels beyond 2048 apart.
    """
    predictions = [[x.float() for x in maps] for maps in outputs]
    score_maps = predictions[0]
    delta_maps = predictions[1]
    scores = per_prior(score_maps, head.cls_out_channels)
    if head.use_sigmoid_cls:
        scores = scores.sigmoid()
    else:
        scores = scores.softmax(-1)[..., :-1]  # the last class is the background
    if len(predictions) > 2:
        scores = scores * per_prior(predictions[2], 1).sigmoid()

    priors = head.prior_generator.grid_priors(
        [x.shape[-2:] for x in score_maps], dtype=torch.float32, device=score_maps[0].device
    )
    batch = scores.shape[0]
    deltas = per_prior(delta_maps, head.bbox_coder.encode_size).flatten(0, 1)
    boxes = head.bbox_coder.decode(torch.cat(priors).repeat(batch, 1), deltas)
    return boxes.unflatten(0, (batch, -1)), scores


def per_prior(maps: Sequence[Tensor], channels: int) -> Tensor:
    """Maps [B, A * channels, h_i, w_i] of all levels -> [B, P, channels], in mmdet's order."""
    levels = []
    for x in maps:
        channels_last = x.permute(0, 2, 3, 1)  # [B, h, w, A * channels]
        levels.append(channels_last.flatten(1).unflatten(1, (-1, channels)))
    return torch.cat(levels, dim=1)
