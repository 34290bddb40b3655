"""Predictions of detectors and segmenters for pictures: finding them, predicting, drawing, writing JSON."""

from __future__ import annotations

import copy
import glob
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, VISUALIZERS, init_default_scope
from numpy.typing import NDArray
from pycocotools import mask as run_lengths

from mmpola.checkpoint.training import TrainingCheckpoint
from mmpola.data.checks.images import unreadable
from mmpola.engine.config import leaves, nodes
from mmpola.engine.progress import progress
from mmpola.messages import UsageError, listed

SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')
"""What counts as a picture in a folder; a file that is named, or matches a pattern, is one whatever its suffix."""

SKIPPED = 3
"""Exit status if pictures could not be read."""

NOISE = (
    'Warning: The [a-z]+ is out of bounds',  # drawn up to the edge
    '.*build_loss.* would be deprecated',
    'Default ..avg_non_ignore.. is False',
)
"""Beginnings of OpenMMLab's warnings that say nothing about a prediction."""

OPACITY = 0.6
"""Of a segmentation over its picture."""


class Picture(NamedTuple):
    """A picture to read, and its results' place below --out, without a suffix."""

    path: Path
    place: Path


def find_pictures(arguments: list[str], out: Path) -> list[Picture]:
    """The pictures that files, folders and patterns stand for, each once.

    Raises:
        UsageError: an argument stands for nothing, or results of two pictures would have one name.
    """
    found: dict[Path, Picture] = {}
    places: dict[Path, Path] = {}
    for argument in arguments:
        for path, place in _expand(argument, out.resolve()):
            if path.resolve() in found:
                continue
            if place in places:
                raise UsageError(f'{places[place]} and {path}: the results of both would be {out / place}.json')
            places[place] = path
            found[path.resolve()] = Picture(path, place)
    return list(found.values())


def _expand(argument: str, out: Path) -> list[tuple[Path, Path]]:
    """(picture, place of its results) of one argument; in a folder that holds `out`, without what is in `out`."""
    path = Path(argument)
    if path.is_file():
        return [(path, Path(path.stem))]
    if path.is_dir():
        paths = sorted(p for p in path.rglob('*') if p.suffix.lower() in SUFFIXES and p.is_file())
        base, nothing = path, f'no pictures in this folder ({" ".join(SUFFIXES)})'
    else:
        paths = sorted(p for p in map(Path, glob.glob(argument, recursive=True)) if p.is_file())
        base = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
        nothing = 'no such file or folder' if not glob.has_magic(argument) else 'no file matches this pattern'
    if out != base.resolve():
        paths = [p for p in paths if out not in p.resolve().parents]
    if not paths:
        raise UsageError(f'{argument}: {nothing}')
    return [(p, p.relative_to(base).with_suffix('')) for p in paths]


def check_outputs(pictures: list[Picture], out: Path, suffixes: tuple[str, ...], overwrite: bool) -> None:
    """Raise UsageError if a result would replace a picture that is read, or, without --overwrite, any file."""
    read = {picture.path.resolve() for picture in pictures}
    outputs = [_output(out, picture, suffix) for picture in pictures for suffix in suffixes]
    if replaced := [path for path in outputs if path.resolve() in read]:
        raise UsageError(f'--out: {out}: results would replace the pictures themselves ({listed(replaced)})')
    there = [] if overwrite else [path for path in outputs if path.exists()]
    if there:
        raise UsageError(
            f'--out: {len(there)} of the results are there already ({listed(there)}); '
            'choose another folder, or let them be replaced by --overwrite'
        )


def _output(out: Path, picture: Picture, suffix: str) -> Path:
    return out / picture.place.parent / f'{picture.place.name}{suffix}'


@dataclass
class Predictor:
    """A model with what stands before and after it.

    Args:
        model: in eval mode, on its device.
        transforms: the config's test pipeline, from pixels to a sample.
        visualizer: draws samples.
        classes: names, in the order of the labels.
        pads: whether it takes pictures of several sizes at once: mmdet pads them, mmseg stacks them.
    """

    model: Any
    transforms: Compose
    visualizer: Any
    classes: tuple[str, ...]
    pads: bool

    def __call__(self, batch: list[tuple[Picture, NDArray[Any]]]) -> list[Any]:
        """The predicted sample of each (picture, its pixels BGR uint8 [H, W, 3])."""
        data = [
            self.transforms(
                {'img': pixels, 'img_path': str(picture.path), 'img_shape': size, 'ori_shape': size, 'img_id': 0}
            )
            for picture, pixels in batch
            for size in [pixels.shape[:2]]
        ]
        with torch.no_grad():
            samples: list[Any] = self.model.test_step(pseudo_collate(data))
        return samples


def build_predictor(cfg: Config, checkpoint: TrainingCheckpoint, device: str) -> Predictor:
    """The config's model and test pipeline, with the checkpoint's weights and class names.

    Classes that a checkpoint does not name are those of the config's test data.
    """
    cfg = copy.deepcopy(cfg)
    _forget_pretrained(cfg.model)
    init_default_scope(cfg.default_scope)
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    model.load_state_dict(checkpoint.weights, strict=False)  # old batch norms lack their counter
    dataset = next(leaves(cfg.test_dataloader.dataset))
    own = DATASETS.build({**dataset, 'lazy_init': True, 'pipeline': []}).metainfo
    names = checkpoint.meta.get('dataset_meta') or own
    classes = tuple(names.get('classes') or own['classes'])
    palette = names.get('palette') or own.get('palette') or 'random'
    visualizer = VISUALIZERS.build({**cfg.visualizer, 'name': 'prediction', 'vis_backends': None})
    visualizer.dataset_meta = {'classes': classes, 'palette': palette}
    if cfg.default_scope == 'mmseg':
        visualizer.alpha = OPACITY
    transforms = Compose([step for step in dataset['pipeline'] if not step['type'].split('.')[-1].startswith('Load')])
    return Predictor(model.to(device).eval(), transforms, visualizer, classes, pads=cfg.default_scope == 'mmdet')


def _forget_pretrained(model: Any) -> None:
    """Remove every init_cfg inside a model's config: a checkpoint of a training has all weights."""
    for _, node in nodes(model, 'model'):
        if 'init_cfg' in node:
            node['init_cfg'] = None


def batches(
    pictures: list[Picture], size: int, mixed: bool, skip: Callable[[Picture, str], None]
) -> Iterator[list[tuple[Picture, NDArray[Any]]]]:
    """Lists of (picture, its pixels BGR uint8 [H, W, 3]), up to `size` long; unless `mixed`, of one H and W each."""
    batch: list[tuple[Picture, NDArray[Any]]] = []
    for picture in pictures:
        if reason := unreadable(picture.path):
            skip(picture, reason)
            continue
        pixels = cv2.imread(str(picture.path), cv2.IMREAD_COLOR)
        if pixels is None:
            skip(picture, 'not an image')
            continue
        if batch and (len(batch) == size or not (mixed or pixels.shape == batch[0][1].shape)):
            yield batch
            batch = []
        batch.append((picture, pixels))
    if batch:
        yield batch


def detections(sample: Any, classes: tuple[str, ...], threshold: float) -> dict[str, Any]:
    """The instances of an mmdet sample whose score is not below `threshold`, best first."""
    kept = sample.pred_instances[sample.pred_instances.scores >= threshold].cpu().numpy()
    instances = [
        {'label': int(label), 'class': classes[label], 'score': float(score), 'box': [float(edge) for edge in box]}
        for label, score, box in zip(kept.labels, kept.scores, kept.bboxes, strict=True)
    ]
    if 'masks' in kept:
        for instance, mask in zip(instances, kept.masks, strict=True):
            encoded = run_lengths.encode(np.asfortranarray(mask, np.uint8))
            instance['mask'] = {'size': list(encoded['size']), 'counts': encoded['counts'].decode()}
    return {'instances': sorted(instances, key=lambda instance: -instance['score'])}


def segmentation(labels: NDArray[np.integer[Any]], classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Label, name and share of the pixels of every class in a label map [H, W], the largest first."""
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    present = sorted(np.flatnonzero(counts).tolist(), key=lambda label: -counts[label])
    return [{'label': n, 'class': classes[n], 'share': float(counts[n] / labels.size)} for n in present]


def write(
    predictor: Predictor, sample: Any, picture: Picture, pixels: NDArray[Any], out: Path, threshold: float
) -> None:
    """Draw one picture's prediction and write its files; the JSON, last, says that it is complete."""
    drawn, described = _output(out, picture, '.jpg'), _output(out, picture, '.json')
    classes = predictor.classes
    height, width = pixels.shape[:2]
    result = {'image': str(picture.path), 'width': width, 'height': height}
    options = {'draw_gt': False, 'out_file': str(drawn)}
    if 'pred_instances' in sample:
        options['pred_score_thr'] = threshold
        result |= detections(sample, classes, threshold)
    else:
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        label_map = _output(out, picture, '.png')
        label_map.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(label_map), labels.astype(np.uint8 if len(classes) < 256 else np.uint16))
        result |= {'label_map': label_map.name, 'classes': segmentation(labels, classes)}
    predictor.visualizer.add_datasample(picture.path.name, pixels[..., ::-1].copy(), sample.cpu(), **options)
    described.write_text(json.dumps(result, indent=1))


def predict(predictor: Predictor, pictures: list[Picture], out: Path, batch_size: int, threshold: float) -> int:
    """Write the results of all pictures; returns how many could not be read."""
    skipped = 0
    with progress('predicting', len(pictures)) as advance:

        def skip(picture: Picture, reason: str) -> None:
            nonlocal skipped
            skipped += 1
            print(f'skipped: {picture.path}: {reason}', flush=True)
            advance(1)

        for batch in batches(pictures, batch_size, predictor.pads, skip):
            for (picture, pixels), sample in zip(batch, predictor(batch), strict=True):
                write(predictor, sample, picture, pixels, out, threshold)
            advance(len(batch))
    return skipped


def check_device(name: str | None) -> str:
    """The name of a device that is there.

    Raises:
        UsageError: torch does not know it, or finds no GPU of this number.
    """
    name = name or ('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f'--device: {name}: {str(error).splitlines()[0]}') from None
    return name
