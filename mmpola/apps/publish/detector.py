"""Export a whole detector with a dense head (RetinaNet, FCOS, RTMDet …) for images of one size.

The exported program does what mmdet's `predict` does in `BaseDenseHead`, without steps whose sizes
depend on the scores: a fixed number of candidates per level is kept, and the threshold comes last.
Candidates below it sort behind all others, so that they suppress none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torchvision.ops import nms

from mmpola.apps.publish.export import (
    ExportModel,
    Outputs,
    normalisation,
    open_session,
    record_program,
)
from mmpola.checkpoint.write import write_atomically
from mmpola.config_contents import input_channels
from mmpola.engine.training_checkpoint import TrainingCheckpoint, load_model
from mmpola.engine.validate import unwrapped
from mmpola.messages import UsageError, counted, first_line

BASE_HEAD = 'BaseDenseHead'
OWN_STEPS = ('predict_by_feat', '_predict_by_feat_single', '_bbox_post_process')
"""Methods of mmdet's base class that `DenseDetector` stands for."""

COMPARED_IMAGES = 2
SEARCHED_IMAGES = 50
"""How many images of the test data are compared, and searched for ones with objects."""

BOX_TOLERANCE = 1e-2
"""Largest difference of a box's side, in pixels."""

SCORE_TOLERANCE = 1e-4

NOT_VALID = -1.0
"""Score of candidates that are below the threshold or too small."""


class DenseDetector(nn.Module):
    """Normalised images [1, C, H, W] of one size -> boxes, scores, labels.

    Args:
        model: a detector of mmdet with backbone, neck and a dense head, in eval mode.
        size: height and width of the images in pixels.
        channels: C of the images.

    Raises:
        UsageError: the head computes boxes in a way of its own, or the model does not take this
            size; the message names the remedy.
    """

    def __init__(self, model: Any, size: tuple[int, ...], channels: int = 3) -> None:
        super().__init__()
        _refuse_other_heads(model)
        self.model = model
        self.head = model.bbox_head
        self.size = size
        preprocessor = model.data_preprocessor
        divisor = preprocessor.pad_size_divisor
        self.pad_value = preprocessor.pad_value
        self.padding = (0, -size[1] % divisor, 0, -size[0] % divisor)  # right and below
        try:
            with torch.no_grad():
                class_maps = self._head_maps(torch.zeros(1, channels, *size))[0]
        except RuntimeError as error:  # of a neck that joins levels, such as RTMDet's
            sides = ' x '.join(str(side) for side in size)
            raise UsageError(
                f'{type(model).__name__}: expected sides that fit the model, for example multiples '
                f'of 32, got {sides}: {first_line(error)}'
            ) from error
        sizes = [x.shape[-2:] for x in class_maps]
        self.priors: list[Tensor] = self.head.prior_generator.grid_priors(sizes, device='cpu')

    def _head_maps(self, images: Tensor) -> Any:
        """Return the outputs of the head: scores, boxes and perhaps factors of each level."""
        padded = F.pad(images, self.padding, value=self.pad_value)
        return self.head(self.model.extract_feat(padded))

    def forward(self, images: Tensor) -> Outputs:
        """Return boxes [N, 4], scores [N] and labels [N], by descending score.

        Boxes are x1, y1, x2, y2 in pixels. N depends on the image.
        """
        settings = self.head.test_cfg
        levels = [self._candidates(*maps) for maps in self._level_maps(images)]
        deltas, priors, scores, factors, labels = (
            torch.cat(tensors) for tensors in zip(*levels, strict=True)
        )
        boxes = self.head.bbox_coder.decode(priors, deltas, max_shape=self.size)
        is_valid = scores > settings.get('score_thr', 0)
        smallest = settings.get('min_bbox_size', -1)
        if smallest >= 0:
            is_large = (boxes[:, 2:] - boxes[:, :2] > smallest).all(dim=1)
            is_valid = is_valid & is_large
        scores = torch.where(is_valid, scores * factors, NOT_VALID)

        # Boxes of different classes are moved apart, by as much as in mmdet: by valid boxes.
        largest = torch.where(is_valid[:, None], boxes, 0.0).max()
        shift = labels.to(boxes.dtype) * (largest + 1)
        kept = nms(boxes + shift[:, None], scores, settings.nms.iou_threshold)
        kept = kept[: settings.max_per_img]
        kept = kept[scores[kept] > NOT_VALID]
        return {'boxes': boxes[kept], 'scores': scores[kept], 'labels': labels[kept]}

    def _level_maps(self, images: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor]]:
        """Yield scores, boxes, factors and priors of each level."""
        class_maps, box_maps, *factor_maps = self._head_maps(images)
        for level, priors in enumerate(self.priors):
            factor_map = None
            if factor_maps:
                factor_map = factor_maps[0][level]
            yield class_maps[level], box_maps[level], factor_map, priors

    def _candidates(
        self, class_map: Tensor, box_map: Tensor, factor_map: Tensor | None, priors: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the best candidates of one level.

        Args:
            class_map: logits [1, A * classes, h, w].
            box_map: what the head's coder decodes [1, A * 4, h, w].
            factor_map: logits of what scores are multiplied by [1, A, h, w], or None.
            priors: [h * w * A, …].

        Returns:
            For each candidate what the coder decodes, prior, score, factor and label.
        """
        classes = self.head.cls_out_channels
        logits = class_map[0].permute(1, 2, 0).reshape(-1, classes)
        if self.head.use_sigmoid_cls:
            scores = logits.sigmoid()
        else:
            scores = logits.softmax(-1)[:, :-1]
        number = min(self.head.test_cfg.get('nms_pre', -1), scores.numel())
        best, places = scores.flatten().topk(number)
        rows = places // scores.shape[1]
        labels = places % scores.shape[1]
        deltas = box_map[0].permute(1, 2, 0).reshape(-1, 4)
        factors = torch.ones_like(best)
        if factor_map is not None:
            # Of all places, then of the best, as in mmdet: a short sigmoid rounds otherwise.
            factors = factor_map[0].permute(1, 2, 0).flatten().sigmoid()[rows]
        return deltas[rows], priors[rows], best, factors, labels


def _refuse_other_heads(model: Any) -> None:
    """Raise UsageError unless `DenseDetector` stands for what the model's head does."""
    advice = 'export its backbone with --backbone'
    name = type(model).__name__
    head = getattr(model, 'bbox_head', None)
    if head is None or hasattr(model, 'roi_head'):
        raise UsageError(
            f'{name}: only detectors with one dense head (RetinaNet, FCOS, RTMDet …) are exported '
            f'whole; {advice}'
        )
    head_name = type(head).__name__
    for method in OWN_STEPS:
        function = getattr(type(head), method, None)
        if function is None or function.__qualname__ != f'{BASE_HEAD}.{method}':
            raise UsageError(f'{head_name}: its boxes are computed in a way of its own; {advice}')
    settings = head.test_cfg
    others = settings.nms.keys() - {'type', 'iou_threshold'}
    if settings.nms.get('type') != 'nms' or others:
        rule = "expected dict(type='nms', iou_threshold=…)"
        raise UsageError(f'model.test_cfg.nms: {rule}, got {dict(settings.nms)}')
    if settings.get('nms_pre', -1) <= 0:
        raise UsageError('model.test_cfg.nms_pre: expected a number of candidates, got none')


def export_detector(
    cfg: Config,
    built: nn.Module,
    checkpoint: TrainingCheckpoint,
    path: Path,
    size: tuple[int, ...],
) -> tuple[float, float]:
    """Export a whole detector to an ONNX file that finds what mmdet's `predict` finds.

    They are compared on images of the config's test data.

    Args:
        cfg: config of a detector.
        built: its model, from `validate_config`.
        checkpoint: compared with the config.
        path: the file to write, in an existing folder.
        size: height and width of the images in pixels.

    Returns:
        The largest differences of boxes, in pixels, and of scores.

    Raises:
        UsageError: the detector cannot be exported, there are no images to compare, or the results
            differ. Nothing is written.
    """
    model = unwrapped(load_model(built, checkpoint))
    channels = input_channels(cfg.model)
    mean, std, reverse = normalisation(model, cfg)
    detector = DenseDetector(model, size, channels)
    exported = ExportModel(detector, DenseDetector.__call__, mean, std, reverse, channels)
    pairs = list(found_objects(model, cfg, size))
    if not pairs:
        raise UsageError(
            f'the model finds nothing in {counted(SEARCHED_IMAGES, "image")} of the test data, so '
            'that nothing can be compared; expected a trained checkpoint'
        )
    sample = torch.zeros(1, channels, *size)
    content = record_program(exported, sample, is_dynamic=False).model_proto.SerializeToString()
    session = open_session(content)
    worst = (0.0, 0.0)
    for images, expected in pairs:
        boxes, scores, labels = session.run(None, {'images': images.numpy()})
        found = {
            'boxes': torch.from_numpy(boxes),
            'scores': torch.from_numpy(scores),
            'labels': torch.from_numpy(labels),
        }
        differences = compare_objects(found, expected)
        worst = (max(worst[0], differences[0]), max(worst[1], differences[1]))
    write_atomically(path, content)
    return worst


def found_objects(
    model: Any, cfg: Config, size: tuple[int, ...]
) -> Iterator[tuple[Tensor, Outputs]]:
    """Yield images of the test data with at least one object, and what `predict` finds in them.

    An image is what the test pipeline loads, resized to `size`: pixels [1, C, H, W], as
    `ExportModel` takes them.

    Raises:
        UsageError: the test data cannot be read.
    """
    init_default_scope(cfg.default_scope)
    try:
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
        number = min(len(dataset), SEARCHED_IMAGES)
        loaded = (dataset[index]['inputs'] for index in range(number))
        found = 0
        for pixels in loaded:
            images = F.interpolate(pixels[None].float(), size, mode='bilinear')
            expected = predict(model, images[0])
            if len(expected['boxes']) > 0:
                if images.shape[1] == 3:  # loaded as BGR
                    images = images.flip(1)
                yield images, expected
                found += 1
            if found == COMPARED_IMAGES:
                return
    except (OSError, FileNotFoundError) as error:
        raise UsageError(
            f'a detector is compared on images of test_dataloader.dataset, which cannot be read: '
            f'{error}'
        ) from error


def predict(model: Any, pixels: Tensor) -> Outputs:
    """Return what mmdet finds in loaded pixels [C, H, W]: boxes [N, 4], scores [N], labels [N]."""
    size = tuple(pixels.shape[1:])
    sample = BaseDataElement(
        metainfo={'img_shape': size, 'ori_shape': size, 'scale_factor': (1.0, 1.0)}
    )
    with torch.no_grad():
        (result,) = model.test_step({'inputs': [pixels], 'data_samples': [sample]})
    objects = result.pred_instances
    return {'boxes': objects.bboxes, 'scores': objects.scores, 'labels': objects.labels}


def compare_objects(found: Outputs, expected: Outputs) -> tuple[float, float]:
    """Return the largest differences of boxes, in pixels, and of scores.

    Objects whose scores are nearly equal may come in another order.

    Raises:
        UsageError: the results are not the same objects.
    """
    numbers = [len(found['boxes']), len(expected['boxes'])]
    box_errors = (found['boxes'][:, None] - expected['boxes']).abs().amax(dim=2)
    score_errors = (found['scores'][:, None] - expected['scores']).abs()
    agree = (box_errors <= BOX_TOLERANCE) & (score_errors <= SCORE_TOLERANCE)
    agree &= found['labels'][:, None] == expected['labels']
    if numbers[0] != numbers[1] or not agree.any(dim=0).all() or not agree.any(dim=1).all():
        same = min(int(agree.any(dim=0).sum()), int(agree.any(dim=1).sum()))
        raise UsageError(
            f'expected the {counted(numbers[1], "object")} that PyTorch finds, got {numbers[0]} of '
            f'which {same} agree; nothing was written'
        )
    distances = torch.where(agree, box_errors, torch.inf)
    nearest = distances.argmin(dim=0)
    columns = torch.arange(numbers[1])
    return float(distances[nearest, columns].max()), float(score_errors[nearest, columns].max())
