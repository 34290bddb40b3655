"""What needs no network: a constant answer, a table, a linear model on the same test split.

A network that scores little more than these has learned little more than they know.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.experiments.plan import Run
from benchmarks.experiments.results import RESULTS
from mmpola.files import write_atomically

FLOORS = RESULTS / 'floors.json'
Floor = dict[str, Any]
"""'name' of what answers, and its metrics by their titles."""

EPOCHS = 20
BATCH = 128
RATE = 0.01


def measure_floors() -> dict[str, list[Floor]]:
    """Write FLOORS and return it: experiment -> its floors."""
    measured: dict[str, Callable[[], list[Floor]]] = {'e2': street_floors, 'e4': picture_floors}
    floors = {key: measure() for key, measure in measured.items()}
    write_atomically(FLOORS, json.dumps(floors, indent=1) + '\n')
    return floors


def load_floors() -> dict[str, list[Floor]]:
    """Return the floors of all experiments that have some."""
    floors: dict[str, list[Floor]] = json.loads(FLOORS.read_text())
    return floors


def split_of(config: Config, split: str) -> Any:
    """Return a built data set of a config: 'train', 'val' or 'test'."""
    init_default_scope(config.default_scope)
    return DATASETS.build(config[f'{split}_dataloader'].dataset)


def street_floors() -> list[Floor]:
    """Return what the most frequent class of all pixels, and of each position, scores."""
    from mmseg.evaluation import IoUMetric

    config = Config.fromfile(Run('segment_swin', 0).config)
    config.train_dataloader.dataset.pipeline = config.test_pipeline  # whole images
    training = split_of(config, 'train')
    classes = len(training.metainfo['classes'])
    ignored = config.void
    counts: Any = 0
    for number in range(len(training)):
        labels = label_map(training, number)
        counts = counts + F.one_hot(labels, ignored + 1)[..., :classes]  # [H, W, classes]
    answers = {
        'the most frequent class': counts.sum((0, 1)).argmax().expand(counts.shape[:2]),
        'the most frequent class of each pixel position': counts.argmax(-1),
    }
    test = split_of(config, 'test')
    floors = []
    for name, answer in answers.items():
        areas: Any = None
        for number in range(len(test)):
            labels = label_map(test, number)
            found = IoUMetric.intersect_and_union(answer.clone(), labels, classes, ignored)
            areas = found if areas is None else [a + b for a, b in zip(areas, found, strict=True)]
        scores = IoUMetric.total_area_to_metrics(*areas, metrics=['mIoU'])
        iou = 100 * float(np.nanmean(scores['IoU']))
        accuracy = 100 * float(scores['aAcc'])
        floors.append({'name': name, 'mIoU': round(iou, 1), 'pixel accuracy': round(accuracy, 1)})
    return floors


def label_map(dataset: Any, number: int) -> Tensor:
    """Return the labels [H, W] of an image."""
    labels: Tensor = dataset[number]['data_samples'].gt_sem_seg.data[0].long()
    return labels


def picture_floors() -> list[Floor]:
    """Return what one class for all pictures, and a logistic regression on pixels, score."""
    config = Config.fromfile(Run('classify_full', 0).config)
    pixels, labels = pictures(split_of(config, 'train'))
    test_pixels, test_labels = pictures(split_of(config, 'test'))
    most_frequent = labels.bincount().argmax()
    answers = {
        'one class for all pictures': most_frequent.expand(len(test_labels)),
        'logistic regression on the pixels': linear_answers(pixels, labels, test_pixels),
    }
    floors = []
    for name, answer in answers.items():
        accuracy = 100 * float((answer == test_labels).float().mean())
        floors.append({'name': name, 'accuracy': round(accuracy, 1)})
    return floors


def pictures(dataset: Any) -> tuple[Tensor, Tensor]:
    """Return the pictures of a data set as bytes [N, pixels * 3], and their labels [N]."""
    images = []
    for number in range(len(dataset)):
        path = dataset.get_data_info(number)['img_path']
        images.append(np.asarray(Image.open(path).convert('RGB')).ravel())
    return torch.from_numpy(np.stack(images)), torch.as_tensor(dataset.labels)


def linear_answers(pixels: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """Return what a logistic regression on `pixels` [N, P] answers to `others` [M, P]: [M]."""
    torch.manual_seed(0)
    layer = nn.Linear(pixels.shape[1], int(labels.max()) + 1)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=RATE, momentum=0.9)
    steps = len(pixels) // BATCH * EPOCHS
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(pixels))
        for indices in order[: len(pixels) // BATCH * BATCH].split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(layer(scaled(pixels[indices])), labels[indices]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        answers: Tensor = layer(scaled(others)).argmax(1)
    return answers


def scaled(pixels: Tensor) -> Tensor:
    """Return bytes as numbers from -0.3 to 0.3."""
    return 0.3 * (pixels.float() / 127.5 - 1)
