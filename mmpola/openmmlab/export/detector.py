"""A whole detector as one program for images of one size: one dense head, or two stages.

The program does what mmdet's `predict` does, without steps whose sizes depend on the scores where a
graph cannot hold them: a fixed number of candidates per level is kept before the threshold, a fixed
number of regions is read, and every level pools all regions. All else is mmdet's own code.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torchvision.ops import nms, roi_align

from mmpola.messages import UsageError, first_line
from mmpola.openmmlab.config.contents import type_name
from mmpola.openmmlab.export.onnx import Outputs

DENSE_STEPS = ('predict', 'predict_by_feat', '_predict_by_feat_single', '_bbox_post_process')
REGION_STEPS = ('predict', 'predict_bbox', 'predict_mask')
DENSE_CLASSES = {'SingleStageDetector', 'BaseDenseHead', 'RPNHead'}
REGION_CLASSES = {'TwoStageDetector', 'BaseRoIHead', 'StandardRoIHead', 'CascadeRoIHead'}
"""This file stands for these methods of a model and its heads, if they are of these classes."""

ADVICE = 'export its backbone with --backbone'


class Detector(nn.Module):
    """Normalised images [1, C, H, W] of one size -> boxes, scores, labels, and perhaps masks.

    Args:
        model: a detector of mmdet with one dense head or two stages, in eval mode.
        size: height and width of the images in pixels.
        channels: C of the images.

    Raises:
        UsageError: a head computes boxes in a way of its own, or the model does not take this
            size; the message names the remedy.
    """

    def __init__(self, model: Any, size: tuple[int, ...], channels: int = 3) -> None:
        super().__init__()
        refuse_other_heads(model)
        self.model = model
        self.size = size
        preprocessor = model.data_preprocessor
        divisor = preprocessor.pad_size_divisor
        self.pad_value = preprocessor.pad_value
        self.padding = (0, -size[1] % divisor, 0, -size[0] % divisor)  # right and below
        self.regions: RegionStage | None = None
        head = getattr(model, 'bbox_head', None)
        if hasattr(model, 'roi_head'):
            head = model.rpn_head
            self.regions = RegionStage(model.roi_head, size, head.test_cfg.max_per_img)
        try:
            with torch.no_grad():
                maps = self.neck_maps(torch.zeros(1, channels, *size))
                self.dense = DenseStage(head, size, maps)
        except RuntimeError as error:  # of a neck that joins levels, such as RTMDet's
            sides = ' x '.join(str(side) for side in size)
            raise UsageError(
                f'{type(model).__name__}: expected sides that fit the model, for example multiples '
                f'of 32, got {sides}: {first_line(error)}'
            ) from error

    def neck_maps(self, images: Tensor) -> Any:
        padded = F.pad(images, self.padding, value=self.pad_value)
        return self.model.extract_feat(padded)

    def forward(self, images: Tensor) -> Outputs:
        """Return boxes [N, 4], scores [N] and labels [N], by descending score.

        Boxes are x1, y1, x2, y2 in pixels. N depends on the image. A model with a mask head also
        returns masks [N, h, w]: the probability of the object at places inside its box.
        """
        maps = self.neck_maps(images)
        objects = self.dense(maps)
        if self.regions is None:
            return objects
        return self.regions(maps, objects['boxes'])


class DenseStage(nn.Module):
    """Maps of a neck -> what a dense head or RPN finds in an image of one size.

    `maps` come from any image of this size.
    """

    def __init__(self, head: Any, size: tuple[int, ...], maps: Any) -> None:
        super().__init__()
        self.head = head
        self.size = size
        sizes = [x.shape[-2:] for x in head(maps)[0]]
        self.priors: list[Tensor] = head.prior_generator.grid_priors(sizes, device='cpu')
        self.is_rpn = type(head)._bbox_post_process.__qualname__.startswith('RPNHead')

    def forward(self, maps: Any) -> Outputs:
        """Return what `Detector` returns; the labels of an RPN are levels."""
        settings = self.head.test_cfg
        outputs = self.head(maps)  # class maps, box maps and perhaps maps of factors
        levels = [self._candidates(level, *x) for level, x in enumerate(zip(*outputs, strict=True))]
        deltas, priors, scores, factors, labels = (
            torch.cat(tensors) for tensors in zip(*levels, strict=True)
        )
        boxes = self.head.bbox_coder.decode(priors, deltas, max_shape=self.size)
        is_valid = torch.ones_like(scores, dtype=torch.bool)
        if not self.is_rpn:
            is_valid = scores > settings.get('score_thr', 0)
        smallest = settings.get('min_bbox_size', -1)
        if smallest >= 0:
            is_large = (boxes[:, 2:] - boxes[:, :2] > smallest).all(dim=1)
            is_valid = is_valid & is_large
        return best_objects(boxes, scores * factors, labels, is_valid, settings)

    def _candidates(
        self, level: int, class_map: Tensor, box_map: Tensor, factor_map: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return delta, prior, score, factor and label of the best candidates of one level.

        Args:
            level: index of the level.
            class_map: logits [1, A * classes, h, w].
            box_map: deltas, which the head's coder decodes [1, A * 4, h, w].
            factor_map: logits of what scores are multiplied by [1, A, h, w].
        """
        logits = class_map[0].permute(1, 2, 0).reshape(-1, self.head.cls_out_channels)
        if self.head.use_sigmoid_cls:
            scores = logits.sigmoid()
        else:
            scores = logits.softmax(-1)[:, :-1]
        number = min(self.head.test_cfg.nms_pre, scores.numel())
        best, places = scores.flatten().topk(number)
        rows = places // scores.shape[1]
        labels = places % scores.shape[1]
        if self.is_rpn:
            labels = torch.full_like(places, level)
        deltas = box_map[0].permute(1, 2, 0).reshape(-1, 4)
        factors = torch.ones_like(best)
        if factor_map is not None:
            # Of all places, then of the best, as in mmdet: a short sigmoid rounds otherwise.
            factors = factor_map[0].permute(1, 2, 0).flatten().sigmoid()[rows]
        return deltas[rows], self.priors[level][rows], best, factors, labels


class RegionStage(nn.Module):
    """Maps of a neck and boxes of an RPN -> what the second stage finds in an image of one size.

    `number` regions are read. Where the RPN finds fewer, the others are empty.
    """

    def __init__(self, roi_head: Any, size: tuple[int, ...], number: int) -> None:
        super().__init__()
        self.roi_head = copy.deepcopy(roi_head)
        for name, module in list(self.roi_head.named_modules(remove_duplicate=False)):
            if hasattr(module, 'roi_layers'):
                self.roi_head.set_submodule(name, LevelPooling(module))
        self.size = size
        self.number = number

    def forward(self, maps: Any, proposals: Tensor) -> Outputs:
        """Return what `Detector` returns."""
        settings = self.roi_head.test_cfg
        padded = torch.cat([proposals, proposals.new_zeros(self.number, 4)])[: self.number]
        regions = InstanceData(bboxes=padded)
        is_region = torch.arange(self.number) < proposals.shape[0]
        image = {'img_shape': self.size}
        (found,) = self.roi_head.predict_bbox(maps, [image], [regions], rcnn_test_cfg=None)
        scores = found.scores[:, :-1]  # the last is the background
        classes = scores.shape[1]
        boxes = found.bboxes.reshape(self.number, -1, 4).expand(-1, classes, -1)
        labels = torch.arange(classes).repeat(self.number)
        is_valid = (scores > settings.score_thr) & is_region[:, None]
        objects = best_objects(
            boxes.reshape(-1, 4), scores.flatten(), labels, is_valid.flatten(), settings
        )
        if self.roi_head.with_mask:
            objects['masks'] = self._masks(maps, objects['boxes'], objects['labels'])
        return objects

    def _masks(self, maps: Any, boxes: Tensor, labels: Tensor) -> Tensor:
        """Return masks [N, h, w] of N boxes, averaged over the stages of a cascade."""
        # The index of the image before each, and one more: group norm fails on none in onnxruntime.
        regions = F.pad(boxes, (1, 0, 0, 1))
        if isinstance(self.roi_head.mask_head, nn.ModuleList):
            stages = range(len(self.roi_head.mask_head))
            outputs = [self.roi_head._mask_forward(stage, maps, regions) for stage in stages]
        else:
            outputs = [self.roi_head._mask_forward(maps, regions)]
        masks = torch.stack([output['mask_preds'].sigmoid() for output in outputs]).mean(dim=0)[:-1]
        if masks.shape[1] == 1:  # the same for every class
            return masks[:, 0]
        places = labels[:, None, None, None].expand(-1, 1, *masks.shape[2:])
        return masks.gather(1, places)[:, 0]


class LevelPooling(nn.Module):
    """mmdet's SingleRoIExtractor without a loop over the regions of each level."""

    def __init__(self, extractor: Any) -> None:
        super().__init__()
        self.extractor = extractor
        self.num_inputs = extractor.num_inputs

    def forward(self, maps: Sequence[Tensor], regions: Tensor) -> Tensor:
        """Pool regions [R, 5]: index of the image, x1, y1, x2, y2 -> [R, C, h, w]."""
        levels = self.extractor.map_roi_levels(regions, len(maps))
        pooled = torch.zeros(())
        for level, layer in enumerate(self.extractor.roi_layers):
            is_here = levels == level
            # Regions of the other levels are empty, which saves the time to read them.
            here = roi_align(
                maps[level],
                torch.where(is_here[:, None], regions, 0.0),
                layer.output_size,
                layer.spatial_scale,
                layer.sampling_ratio,
                layer.aligned,
            )
            pooled = torch.where(is_here[:, None, None, None], here, pooled)
        return pooled


def best_objects(
    boxes: Tensor, scores: Tensor, labels: Tensor, is_valid: Tensor, settings: Any
) -> Outputs:
    """Return the valid candidates that non-maximum suppression leaves, by descending score."""
    # Boxes of different classes are moved apart, by as much as in mmdet: by valid boxes.
    largest = torch.where(is_valid[:, None], boxes, 0.0).max()
    valid = is_valid.nonzero().flatten()
    shift = labels[valid].to(boxes.dtype) * (largest + 1)
    kept = nms(boxes[valid] + shift[:, None], scores[valid], settings.nms.iou_threshold)
    best = valid[kept[: settings.max_per_img]]
    return {'boxes': boxes[best], 'scores': scores[best], 'labels': labels[best]}


def refuse_other_heads(model: Any) -> None:
    """Raise UsageError unless this file stands for what the model and its heads do."""
    names = ['bbox_head']
    if hasattr(model, 'roi_head'):
        names = ['rpn_head', 'roi_head']
    heads: dict[str, Any] = {name: getattr(model, name, None) for name in names}
    if None in heads.values():
        raise UsageError(
            f'{type(model).__name__}: only detectors with one dense head (RetinaNet, FCOS, RTMDet '
            f'…) or two stages (Faster, Mask, Cascade R-CNN) are exported whole; {ADVICE}'
        )
    for module in [*heads.values(), model]:
        steps = [getattr(type(module), step, None) for step in DENSE_STEPS + REGION_STEPS]
        classes = {step.__qualname__.split('.')[0] for step in steps if step}
        if not classes <= DENSE_CLASSES | REGION_CLASSES:
            refuse(module, 'its objects are computed')
    for name, head in heads.items():
        settings = head.test_cfg
        if (
            settings.nms.keys() != {'type', 'iou_threshold'}
            or type_name(settings.nms.type) != 'nms'
        ):
            rule = "expected dict(type='nms', iou_threshold=…)"
            raise UsageError(f'{name}.test_cfg.nms: {rule}, got {dict(settings.nms)}')
        if name != 'roi_head' and settings.get('nms_pre', -1) <= 0:
            raise UsageError(f'{name}.test_cfg.nms_pre: expected a number of candidates, got none')
    for module in model.modules():
        layers = getattr(module, 'roi_layers', ())
        has_average = all(getattr(layer, 'pool_mode', '') == 'avg' for layer in layers)
        if layers and not (type(module).__name__ == 'SingleRoIExtractor' and has_average):
            refuse(module, 'regions are pooled')


def refuse(module: Any, what: str) -> NoReturn:
    raise UsageError(f'{type(module).__name__}: {what} in a way of its own; {ADVICE}')
