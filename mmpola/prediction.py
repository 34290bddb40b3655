"""Predict images with a detector or segmenter: find the files, predict, draw, write JSON."""

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
from mmpola.data.read_image import IMAGE_SUFFIXES
from mmpola.engine.config import leaves, nodes
from mmpola.engine.progress import progress
from mmpola.messages import UsageError, listed

SKIPPED = 3
"""Exit status of tools/predict.py if images could not be read."""

NOISE = (
    'Warning: The [a-z]+ is out of bounds',  # of boxes that are drawn up to the edge of the image
    '.*build_loss.* would be deprecated',
    'Default ..avg_non_ignore.. is False',
)
"""Patterns of OpenMMLab's warnings that are irrelevant to predictions."""

OPACITY = 0.6
"""Of a segmentation drawn over its image."""


class ImageFile(NamedTuple):
    """An image file, and the path of its results below --out, without a suffix."""

    path: Path
    result: Path


def find_images(arguments: list[str], out: Path) -> list[ImageFile]:
    """List the images that files, folders and patterns stand for, each once.

    Args:
        arguments: files, folders (searched recursively by `IMAGE_SUFFIXES`) and patterns; a file that is named or
            matches a pattern counts as an image whatever its suffix.
        out: folder of the results; inside a searched folder, it is skipped.

    Raises:
        UsageError: an argument matches nothing, or results of two images would have the same name.
    """
    found: dict[Path, ImageFile] = {}
    taken: dict[Path, Path] = {}
    for argument in arguments:
        for path, result in _expand(argument, out.resolve()):
            if path.resolve() in found:
                continue
            if result in taken:
                raise UsageError(f'{taken[result]} and {path}: the results of both would be {out / result}.json')
            taken[result] = path
            found[path.resolve()] = ImageFile(path, result)
    return list(found.values())


def _expand(argument: str, out: Path) -> list[tuple[Path, Path]]:
    """List (image, path of its results) for one argument, without images in `out`."""
    path = Path(argument)
    if path.is_file():
        return [(path, Path(path.stem))]
    if path.is_dir():
        paths = sorted(p for p in path.rglob('*') if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        base, nothing = path, f'no images in this folder ({" ".join(IMAGE_SUFFIXES)})'
    else:
        paths = sorted(p for p in map(Path, glob.glob(argument, recursive=True)) if p.is_file())
        base = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
        nothing = 'no such file or folder' if not glob.has_magic(argument) else 'no file matches this pattern'
    if out != base.resolve():
        paths = [p for p in paths if out not in p.resolve().parents]
    if not paths:
        raise UsageError(f'{argument}: {nothing}')
    return [(p, p.relative_to(base).with_suffix('')) for p in paths]


def check_outputs(images: list[ImageFile], out: Path, suffixes: tuple[str, ...], overwrite: bool) -> None:
    """Raise UsageError if a result would replace an input image or, without --overwrite, any other file."""
    read = {image.path.resolve() for image in images}
    outputs = [_output(out, image, suffix) for image in images for suffix in suffixes]
    if replaced := [path for path in outputs if path.resolve() in read]:
        raise UsageError(f'--out: {out}: results would overwrite the input images ({listed(replaced)})')
    existing = [] if overwrite else [path for path in outputs if path.exists()]
    if existing:
        raise UsageError(
            f'--out: {len(existing)} of the results exist already ({listed(existing)}); '
            'choose another folder, or allow overwriting by --overwrite'
        )


def _output(out: Path, image: ImageFile, suffix: str) -> Path:
    return out / image.result.parent / f'{image.result.name}{suffix}'


def check_config(cfg: Config) -> tuple[str, ...]:
    """Return the suffixes of the files that are written for each image.

    Raises:
        UsageError: the config is not that of a detector or a segmenter, or is one of test-time augmentation.
    """
    if cfg.get('default_scope') not in ('mmdet', 'mmseg'):
        raise UsageError(
            f'{cfg.filename}: expected a config of a detector or segmenter (default_scope mmdet or mmseg), '
            f'got {cfg.get("default_scope")}'
        )
    if 'module' in cfg.model:
        raise UsageError(f'{cfg.filename}: test-time augmentation is for tools/test.py; give the config that it wraps')
    return ('.jpg', '.json') if cfg.default_scope == 'mmdet' else ('.jpg', '.png', '.json')


@dataclass
class Predictor:
    """A model with its test pipeline and its visualizer.

    Attributes:
        model: in eval mode, on its device.
        transforms: the config's test pipeline, from pixels to a sample.
        visualizer: draws samples.
        classes: names in the order of the labels.
        pads: whether a batch may hold images of several sizes: mmdet pads them, mmseg stacks them.
    """

    model: Any
    transforms: Compose
    visualizer: Any
    classes: tuple[str, ...]
    pads: bool

    def __call__(self, batch: list[tuple[ImageFile, NDArray[Any]]]) -> list[Any]:
        """Predict a batch of (image file, its pixels BGR uint8 [H, W, 3]); returns a sample for each."""
        data = [
            self.transforms(
                {'img': pixels, 'img_path': str(image.path), 'img_shape': size, 'ori_shape': size, 'img_id': 0}
            )
            for image, pixels in batch
            for size in [pixels.shape[:2]]
        ]
        with torch.no_grad():
            samples: list[Any] = self.model.test_step(pseudo_collate(data))
        return samples


def build_predictor(cfg: Config, checkpoint: TrainingCheckpoint, device: str) -> Predictor:
    """Build the config's model and test pipeline, with the checkpoint's weights and class names.

    A checkpoint without class names gets those of the config's test data.
    """
    cfg = copy.deepcopy(cfg)
    _remove_init_cfg(cfg.model)
    init_default_scope(cfg.default_scope)
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    model.load_state_dict(checkpoint.weights, strict=False)  # BatchNorm layers in old files lack their counter
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


def _remove_init_cfg(model: Any) -> None:
    """Set every init_cfg inside a model's config to None: the checkpoint has all weights."""
    for _, node in nodes(model, 'model'):
        if 'init_cfg' in node:
            node['init_cfg'] = None


def batches(
    images: list[ImageFile], size: int, mixed: bool, skip: Callable[[ImageFile, str], None]
) -> Iterator[list[tuple[ImageFile, NDArray[Any]]]]:
    """Yield batches of (image file, its pixels BGR uint8 [H, W, 3]).

    Args:
        images: read in this order.
        size: largest number of images in a batch.
        mixed: whether a batch may hold images of several sizes.
        skip: called with an image that cannot be read and the reason.
    """
    batch: list[tuple[ImageFile, NDArray[Any]]] = []
    for image in images:
        if reason := unreadable(image.path):
            skip(image, reason)
            continue
        pixels = cv2.imread(str(image.path), cv2.IMREAD_COLOR)
        if pixels is None:
            skip(image, 'not an image')
            continue
        if batch and (len(batch) == size or not (mixed or pixels.shape == batch[0][1].shape)):
            yield batch
            batch = []
        batch.append((image, pixels))
    if batch:
        yield batch


def detections(sample: Any, classes: tuple[str, ...], threshold: float) -> dict[str, Any]:
    """Describe the instances of an mmdet sample with a score of at least `threshold`, best first."""
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
    """Return label, name and share of the pixels of every class in a label map [H, W], the largest first."""
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    present = sorted(np.flatnonzero(counts).tolist(), key=lambda label: -counts[label])
    return [{'label': n, 'class': classes[n], 'share': float(counts[n] / labels.size)} for n in present]


def write(
    predictor: Predictor, sample: Any, image: ImageFile, pixels: NDArray[Any], out: Path, threshold: float
) -> None:
    """Draw the prediction of one image and write its files; the JSON comes last and marks it as complete."""
    drawn, described = _output(out, image, '.jpg'), _output(out, image, '.json')
    classes = predictor.classes
    height, width = pixels.shape[:2]
    result = {'image': str(image.path), 'width': width, 'height': height}
    options = {'draw_gt': False, 'out_file': str(drawn)}
    if 'pred_instances' in sample:
        options['pred_score_thr'] = threshold
        result |= detections(sample, classes, threshold)
    else:
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        label_map = _output(out, image, '.png')
        label_map.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(label_map), labels.astype(np.uint8 if len(classes) < 256 else np.uint16))
        result |= {'label_map': label_map.name, 'classes': segmentation(labels, classes)}
    predictor.visualizer.add_datasample(image.path.name, pixels[..., ::-1].copy(), sample.cpu(), **options)
    described.write_text(json.dumps(result, indent=1))


def predict(predictor: Predictor, images: list[ImageFile], out: Path, batch_size: int, threshold: float) -> int:
    """Predict all images and write the results; returns how many could not be read."""
    skipped = 0
    with progress('predicting', len(images)) as advance:

        def skip(image: ImageFile, reason: str) -> None:
            nonlocal skipped
            skipped += 1
            print(f'skipped: {image.path}: {reason}', flush=True)
            advance(1)

        for batch in batches(images, batch_size, predictor.pads, skip):
            for (image, pixels), sample in zip(batch, predictor(batch), strict=True):
                write(predictor, sample, image, pixels, out, threshold)
            advance(len(batch))
    return skipped


def check_device(name: str | None) -> str:
    """Return the name of an available device; None stands for a GPU if there is one, else the CPU.

    Raises:
        UsageError: torch does not know the device, or there is no GPU of this number.
    """
    name = name or ('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f'--device: {name}: {str(error).splitlines()[0]}') from None
    return name
