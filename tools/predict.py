"""Draws what a model finds in pictures, and writes it as JSON beside each.

    python tools/predict.py CONFIG CHECKPOINT IMAGES… --out DIR [--score-thr 0.3] [--batch-size 1] [--device cuda:0]
                            [--overwrite] [--cfg-options KEY=VALUE …]

IMAGES are files, folders with everything below them, and patterns such as 'photos/**/*.jpg'. The folders below a given
one, or below the fixed part of a pattern, are kept in DIR. For PICTURE.jpg it holds

    PICTURE.jpg     boxes and masks above --score-thr, or the segmentation, drawn
    PICTURE.json    detection: {image, width, height, instances: [{label, class, score, box, mask}]}: those drawn,
                    box = [x1, y1, x2, y2] in pixels, mask = COCO's run lengths {size, counts}
                    segmentation: {image, width, height, label_map, classes: [{label, class, share}]}, the largest share
                    of the pixels first
    PICTURE.png     segmentation: the label of every pixel, as numbered in the JSON

Nothing is written over without --overwrite, a picture that was read never. Exit status 0: all pictures are done; 2: the
arguments cannot work, nothing was done; 3: pictures could not be read, were named and skipped, the others are done.
"""

from __future__ import annotations

import argparse
import copy
import glob
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import mmcv
import numpy as np
import torch
import training_checkpoint
from check_data import leaves
from data_checks.images import unreadable
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS
from numpy.typing import NDArray
from progress import progress
from runtime import UsageError, add_common_arguments, load_config, nodes, run_main
from training_checkpoint import TrainingCheckpoint

from mmpola.log import listed

SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')
"""What counts as a picture in a folder; a file that is named, or matches a pattern, is one whatever its suffix."""

SKIPPED = 3
"""Exit status if pictures could not be read."""

NOISE = (
    'Checkpoint is not loaded',  # the inferencers are given none: the weights, already checked, come after
    'weights is None',  # and so do the names of the classes
    'Failed to add .*LocalVisBackend',  # a visualiser without a folder of its own
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


def build_inferencer(cfg: Config, checkpoint: TrainingCheckpoint, device: str) -> Any:
    """mmdet's or mmseg's inferencer around the config's model, with the checkpoint's weights and class names.

    Classes that a checkpoint does not name are those of the config's test data.
    """
    cfg = copy.deepcopy(cfg)
    _forget_pretrained(cfg.model)
    MMLogger.get_current_instance().setLevel('ERROR')  # MMEngine warns of a scope without functions of its own
    if cfg.default_scope == 'mmdet':
        from mmdet.apis import DetInferencer

        inferencer = DetInferencer(cfg, device=device, show_progress=False)
    else:
        from mmseg.apis import MMSegInferencer

        inferencer = MMSegInferencer(cfg, device=device)
        inferencer.show_progress = False
        inferencer.visualizer.alpha = OPACITY
    inferencer.model.load_state_dict(checkpoint.weights, strict=False)  # old batch norms lack their counter
    own = DATASETS.build({**next(leaves(cfg.test_dataloader.dataset)), 'lazy_init': True, 'pipeline': []}).metainfo
    names = checkpoint.meta.get('dataset_meta') or own
    classes = names.get('classes') or own['classes']
    palette = names.get('palette') or own.get('palette') or 'random'
    inferencer.model.dataset_meta = inferencer.visualizer.dataset_meta = {'classes': classes, 'palette': palette}
    return inferencer


def _forget_pretrained(model: Any) -> None:
    """Remove every init_cfg inside a model's config: a checkpoint of a training has all weights."""
    for _, node in nodes(model, 'model'):
        if 'init_cfg' in node:
            node['init_cfg'] = None


def batches(
    pictures: list[Picture], size: int, mixed: bool, skip: Callable[[Picture, str], None]
) -> Iterator[list[tuple[Picture, NDArray[np.uint8]]]]:
    """Lists of (picture, its pixels BGR uint8 [H, W, 3]), up to `size` long; unless `mixed`, of one H and W each."""
    batch: list[tuple[Picture, NDArray[np.uint8]]] = []
    for picture in pictures:
        if reason := unreadable(picture.path):
            skip(picture, reason)
            continue
        pixels = mmcv.imread(str(picture.path))
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
    from mmdet.structures.mask import encode_mask_results

    kept = sample.pred_instances[sample.pred_instances.scores >= threshold].cpu().numpy()
    instances = [
        {'label': int(label), 'class': classes[label], 'score': float(score), 'box': [float(edge) for edge in box]}
        for label, score, box in zip(kept.labels, kept.scores, kept.bboxes, strict=True)
    ]
    if 'masks' in kept:
        for instance, mask in zip(instances, encode_mask_results(kept.masks), strict=True):
            instance['mask'] = {'size': list(mask['size']), 'counts': mask['counts'].decode()}
    return {'instances': sorted(instances, key=lambda instance: -instance['score'])}


def segmentation(labels: NDArray[np.integer[Any]], classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Label, name and share of the pixels of every class in a label map [H, W], the largest first."""
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    present = sorted(np.flatnonzero(counts).tolist(), key=lambda label: -counts[label])
    return [{'label': n, 'class': classes[n], 'share': float(counts[n] / labels.size)} for n in present]


def write(
    inferencer: Any, sample: Any, picture: Picture, pixels: NDArray[np.uint8], out: Path, threshold: float
) -> None:
    """Draw one picture's prediction and write its files; the JSON, last, says that it is complete."""
    drawn, described = _output(out, picture, '.jpg'), _output(out, picture, '.json')
    classes = inferencer.model.dataset_meta['classes']
    height, width = pixels.shape[:2]
    result = {'image': str(picture.path), 'width': width, 'height': height}
    options = {'draw_gt': False, 'out_file': str(drawn)}
    if 'pred_instances' in sample:
        options['pred_score_thr'] = threshold
        result |= detections(sample, classes, threshold)
    else:
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        label_map = _output(out, picture, '.png')
        mmcv.imwrite(labels.astype(np.uint8 if len(classes) < 256 else np.uint16), str(label_map))
        result |= {'label_map': label_map.name, 'classes': segmentation(labels, classes)}
    inferencer.visualizer.add_datasample(picture.path.name, pixels[..., ::-1].copy(), sample.cpu(), **options)
    described.write_text(json.dumps(result, indent=1))


def predict(inferencer: Any, pictures: list[Picture], out: Path, batch_size: int, threshold: float) -> int:
    """Write the results of all pictures; returns how many could not be read."""
    skipped = 0
    mixed = inferencer.scope == 'mmdet'  # mmseg stacks what it is given, mmdet pads
    with progress('predicting', len(pictures)) as advance:

        def skip(picture: Picture, reason: str) -> None:
            nonlocal skipped
            skipped += 1
            print(f'skipped: {picture.path}: {reason}', flush=True)
            advance(1)

        for batch in batches(pictures, batch_size, mixed, skip):
            found = inferencer([pixels for _, pixels in batch], batch_size=len(batch), return_datasamples=True)
            samples = found['predictions'] if isinstance(found, dict) else found
            samples = samples if isinstance(samples, list) else [samples]  # mmseg unpacks a list of one
            for (picture, pixels), sample in zip(batch, samples, strict=True):
                write(inferencer, sample, picture, pixels, out, threshold)
            advance(len(batch))
    return skipped


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Draw what a model finds in pictures', allow_abbrev=False)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint of tools/train.py')
    parser.add_argument('images', nargs='+', help='files, folders, patterns')
    parser.add_argument('--out', type=Path, required=True, help='folder for the results')
    parser.add_argument('--device', help='cpu, cuda:1 … (default: a GPU if there is one)')
    parser.add_argument('--score-thr', type=float, default=0.3, help='detections below this score are left out')
    parser.add_argument('--batch-size', type=int, default=1, help='pictures at once')
    parser.add_argument('--overwrite', action='store_true', help='replace results of an earlier run')
    add_common_arguments(parser)
    args = parser.parse_args()
    if args.batch_size < 1:
        raise UsageError(f'--batch-size: at least 1, got {args.batch_size}')
    args.device = _device(args.device)
    return args


def _device(name: str | None) -> str:
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


def main() -> None:
    args = parse_arguments()
    for message in NOISE:
        warnings.filterwarnings('ignore', message=message)
    cfg = load_config(args)
    if cfg.get('default_scope') not in ('mmdet', 'mmseg'):
        raise UsageError(
            f'{args.config}: predictions of detectors (mmdet) and segmenters (mmseg) are drawn; '
            f'its default_scope is {cfg.get("default_scope")}'
        )
    if 'module' in cfg.model:
        raise UsageError(f'{args.config}: test-time augmentation is for tools/test.py; give the config that it wraps')
    suffixes = ('.jpg', '.json') if cfg.default_scope == 'mmdet' else ('.jpg', '.png', '.json')
    pictures = find_pictures(args.images, args.out)
    check_outputs(pictures, args.out, suffixes, args.overwrite)
    checkpoint = training_checkpoint.read(args.checkpoint)
    training_checkpoint.check_fits(checkpoint, cfg)
    if checkpoint.averaged:
        print(f'{args.checkpoint}: {training_checkpoint.AVERAGED}')
    inferencer = build_inferencer(cfg, checkpoint, args.device)
    skipped = predict(inferencer, pictures, args.out, args.batch_size, args.score_thr)
    print(f'{args.out}: {len(pictures) - skipped} pictures done, {skipped} skipped')
    if skipped:
        sys.exit(SKIPPED)


if __name__ == '__main__':
    run_main(main)
