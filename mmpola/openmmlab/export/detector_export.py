"""Export a whole detector to ONNX, after comparing it with mmdet's `predict` on real images."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn

from mmpola.files import write_atomically
from mmpola.messages import UsageError, counted
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.contents import input_channels
from mmpola.openmmlab.config.types import scope
from mmpola.openmmlab.export.detector import Detector
from mmpola.openmmlab.export.onnx import (
    ExportModel,
    Outputs,
    normalisation,
    open_session,
    record_program,
)
from mmpola.openmmlab.start.fit import TrainingCheckpoint, load_model

COMPARED_IMAGES = 2
SEARCHED_IMAGES = 50
"""How many images of the test data are compared, and searched for ones with objects."""

BOX_TOLERANCE = 1e-2
"""Largest difference of a box's side, in pixels."""

SCORE_TOLERANCE = 1e-4

MASK_OVERLAP = 0.99
"""Least intersection over union of an object's masks."""


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
    detector = Detector(model, size, channels)
    exported = ExportModel(detector, Detector.__call__, mean, std, reverse, channels)
    pairs = list(islice(found_objects(model, cfg, size), COMPARED_IMAGES))
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
        values = session.run(None, {'images': images.numpy()})
        found = {name: torch.from_numpy(x) for name, x in zip(expected, values, strict=True)}
        if 'masks' in found:
            found['masks'] = pasted_masks(model, found, size)
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
    init_default_scope(scope(cfg))
    try:
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
        for index in range(min(len(dataset), SEARCHED_IMAGES)):
            pixels = dataset[index]['inputs'][None].float()
            images = F.interpolate(pixels, size, mode='bilinear')
            expected = predict(model, images[0])
            if len(expected['boxes']) > 0:
                if images.shape[1] == 3:  # loaded as BGR
                    images = images.flip(1)
                yield images, expected
    except OSError as error:
        raise UsageError(
            f'a detector is compared on images of test_dataloader.dataset, which cannot be read: '
            f'{error}'
        ) from error


def predict(model: Any, pixels: Tensor) -> Outputs:
    """Return what mmdet finds in loaded pixels [C, H, W].

    That is boxes [N, 4], scores [N], labels [N], and bool masks [N, H, W] if it predicts masks.
    """
    size = tuple(pixels.shape[1:])
    sample = BaseDataElement(
        metainfo={'img_shape': size, 'ori_shape': size, 'scale_factor': (1.0, 1.0)}
    )
    with torch.no_grad():
        (result,) = model.test_step({'inputs': [pixels], 'data_samples': [sample]})
    objects = result.pred_instances
    found = {'boxes': objects.bboxes, 'scores': objects.scores, 'labels': objects.labels}
    if 'masks' in objects:
        found['masks'] = objects.masks
    return found


def pasted_masks(model: Any, found: Outputs, size: tuple[int, ...]) -> Tensor:
    """Return the masks of a `Detector` as mmdet pastes them into the image: bool [N, H, W]."""
    head = model.roi_head.mask_head
    if isinstance(head, nn.ModuleList):
        head = head[-1]
    objects = InstanceData(bboxes=found['boxes'], labels=torch.zeros_like(found['labels']))
    (pasted,) = head.predict_by_feat(
        mask_preds=(found['masks'][:, None],),
        results_list=[objects],
        batch_img_metas=[{'ori_shape': size, 'scale_factor': (1.0, 1.0)}],
        rcnn_test_cfg=model.roi_head.test_cfg,
        activate_map=True,  # they are probabilities already
    )
    return pasted.masks


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
    if 'masks' in expected:
        masks = [objects['masks'].flatten(1).float() for objects in (found, expected)]
        areas = masks[0].sum(dim=1)[:, None] + masks[1].sum(dim=1)
        common = masks[0] @ masks[1].T
        agree &= common >= MASK_OVERLAP * (areas - common)
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
