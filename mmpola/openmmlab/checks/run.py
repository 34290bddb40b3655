"""Checks of a whole run: config and model, what could be read, splits, evaluators, copies."""

from __future__ import annotations

import contextlib
import copy
import filecmp
import functools
import inspect
import io
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, METRICS, MODELS
from numpy.typing import NDArray

from mmpola.checkpoint.init_cfg import is_pretrained
from mmpola.images import photograph
from mmpola.messages import OTHER_FORMATS, UsageError, first_line, listed
from mmpola.openmmlab.checks.data import FEW_OBJECTS, known_boxes, one_folder_too_deep
from mmpola.openmmlab.checks.read import (
    FEW,
    PIXELS,
    SAMPLES,
    Data,
    covers,
    is_short,
    lacks_a_value,
    scale_factor,
    size_text,
)
from mmpola.openmmlab.checks.table import (
    ERROR,
    FIRST,
    TOGETHER,
    WARNING,
    Run,
    check,
    lines_for,
)
from mmpola.openmmlab.config.build import parameters_without_gradient
from mmpola.openmmlab.config.contents import (
    class_count_problems,
    class_list_problem,
    evaluators,
    head_ignore_index,
    inner_datasets,
    input_channels,
    nodes,
    predicted_classes,
    type_name,
)
from mmpola.openmmlab.config.types import type_class
from mmpola.openmmlab.predict.reader import FIRST_IMAGES
from mmpola.openmmlab.run.advice import length_advice

APART = 1.5
"""Sides of images may be so many times larger or smaller in evaluation than in training."""

MEDIANS_APART = 2
"""The same of the medians: random sizes in training have wide limits, and few are looked at."""

WIDE = 20
"""Mean and standard deviation of a network's input are smaller if mean and std are its own."""

FLAT = 0.02
"""The interquartile range of a network's input, and of pixels from 0 to 1, is larger."""

LIMITS = ('max_per_img', 'max_per_image', 'num_queries')
"""Keys of mmdet's models and heads with the largest number of objects in an image."""

COUNTED = 100
"""Objects of a class in an image that pycocotools counts in AP, whatever `proposal_nums` is."""

MANY_IMAGES = 20_000
"""Above this many images, the quick check compares paths only: a network drive takes minutes."""

MIDDLE = 65_536
"""Bytes in the middle of files of one size that are compared before whole files are."""

REMEDIES = {
    'iscrowd': '0',
    'area': 'width times height of the box',
    'bbox': '[x, y, width, height]',
    'segmentation': "the outline, or leave 'segm' out of the evaluator's metric",
    'width': "the image's width in pixels",
    'height': "the image's height in pixels",
}
"""What to write into a field that annotations or images lack."""

FILES_MISSING = 'files-missing'


# The config, and whether everything could be read.


@check('schedule-length', WARNING, FIRST)
def schedule_length(run: Run) -> Iterator[str]:
    """The schedule of the learning rate has numbers that do not fit the length of training."""
    if 'train' in run.splits and run.cfg.get('train_cfg'):
        yield from length_advice(run.cfg)


@check('image-sizes', WARNING, FIRST)
def image_sizes(run: Run) -> Iterator[str]:
    """A classifier trains on images of another size than it is evaluated on."""
    trained = _input_size(run.cfg.get('train_dataloader') or {})
    evaluated = _input_size(run.cfg.get('val_dataloader') or {})
    if 'train' in run.splits and None not in (trained, evaluated) and trained != evaluated:
        yield (
            f'train_dataloader: images of {trained} pixels, but val_dataloader has {evaluated}; to '
            'evaluate what is trained: --cfg-options '
            f'val_dataloader.dataset.transform.input_size={trained} '
            f'test_dataloader.dataset.transform.input_size={trained}'
        )


def _input_size(dataloader: dict[str, Any]) -> Any:
    """Return the `input_size` of a classifier's data set; None for other data."""
    for dataset in inner_datasets(dataloader.get('dataset') or {}):
        transform = dataset.get('transform')
        if isinstance(transform, dict):
            return transform.get('input_size')
    return None


@check('unread-maps', WARNING, FIRST)
def unread_maps(run: Run) -> Iterator[str]:
    """The backbone learns norms of maps that neck and heads never read: DDP stops there."""
    if 'train' not in run.splits or run.model is None or run.cfg.get('find_unused_parameters'):
        return
    idle = parameters_without_gradient(run.model, input_channels(run.cfg.model))
    if idle:
        yield (
            f'model.backbone: {listed(idle)} get no gradient, as nothing reads what they compute: '
            'training stops at its second step on several GPUs; leave the maps that are not read '
            'out of model.backbone.out_indices, and out of in_channels, in_index and start_level '
            'of the neck or the heads, or set find_unused_parameters=True'
        )


@check(FILES_MISSING, ERROR, FIRST)
def files_missing(run: Run) -> Iterator[str]:
    """Annotation files or folders of the config do not exist."""
    for data in run.sets:
        for path in data.absent:
            message = f'{data.loader}: {path}: not found'
            if path in data.keys:
                message += f' ({data.keys[path]})'
            yield message
    for split in run.splits:
        for key, node in evaluators(run.cfg, split):
            truth = node.get('ann_file')
            if truth and not Path(truth).exists():
                yield f'{key}.ann_file: {truth}: not found'


@check('classes-comma', ERROR, FIRST)
def classes_comma(run: Run) -> Iterator[str]:
    """`metainfo.classes` is one name without a comma behind it."""
    for data in run.sets:  # some data sets cannot be read with such classes
        names = (data.config.get('metainfo') or {}).get('classes')
        # MMEngine reads a file of names; of another text it takes the letters for the classes.
        if isinstance(names, str) and not Path(names).exists():
            yield (
                f'{data.loader}.dataset.metainfo.classes: expected several names or one with a '
                f"comma, ('{names}',), got '{names}'"
            )


@check('unreadable', ERROR, FIRST)
def unreadable(run: Run) -> Iterator[str]:
    """The data set cannot be built, or cannot read its annotations."""
    for data in run.sets:
        if isinstance(data.error, UsageError):  # of the constructors of sequences
            yield from str(data.error).splitlines()
        elif data.error is not None and not any(text_in_numbers(data)):
            message = '; '.join(str(data.error).strip().splitlines())
            reason = f'{data.kind} cannot read it ({type(data.error).__name__}: {message})'
            is_of_other_format = isinstance(data.error, (KeyError, AssertionError))
            if is_of_other_format and data.place.endswith('.json'):
                reason += f"; expected a file in COCO's format. {OTHER_FORMATS}"
            entries = unreadable_entries(data)
            if not entries:
                yield f'{data.file or data.place}: {reason}'
            for failure, names in entries.items():
                yield from lines_for(
                    f'{data.place}: training cannot read entries, {failure}', names
                )


def unreadable_entries(data: Data) -> dict[str, list[str]]:
    """List the images and annotations of a file that a data set cannot read, by the reason."""
    found: dict[str, list[str]] = {}
    if data.raw is None or data.dataset is None:
        return found
    for key, image in data.raw.imgs.items():
        raw_image = {**image, 'img_id': key}
        failure = parsing_failure(data.dataset, raw_image, [])
        if failure:
            found.setdefault(failure, []).append(f'image {image.get("file_name", key)}')
            continue
        for annotation in data.raw.imgToAnns.get(key, []):
            failure = parsing_failure(data.dataset, raw_image, [annotation])
            if failure:
                found.setdefault(failure, []).append(f'id {annotation.get("id")}')
    return found


def parsing_failure(dataset: Any, image: dict[str, Any], annotations: list[Any]) -> str:
    """Return the error of a data set that parses an image with some annotations, or ''."""
    try:
        dataset.parse_data_info({'raw_img_info': image, 'raw_ann_info': annotations})
    except KeyError as error:
        return f'no {error}; write {REMEDIES.get(error.args[0], "it")}'
    except Exception as error:  # whatever a data set raises about a field
        return first_line(error)
    return ''


NUMBERS = (
    (('images', 'width'),),
    (('images', 'height'),),
    (('annotations', 'bbox'),),
    (('annotations', 'area'),),
    (('annotations', 'iscrowd'),),
    (('annotations', 'ignore'),),
    (('categories', 'id'), ('annotations', 'category_id')),
    (('images', 'id'), ('annotations', 'image_id')),
)
"""Fields of a file in COCO layout that hold numbers; ids that are compared may all be text."""


@check('numbers-as-text', ERROR, FIRST)
def numbers_as_text(run: Run) -> Iterator[str]:
    """A file in COCO's format has text in place of numbers, such as "30"."""
    for data in run.sets:
        yield from text_in_numbers(data)


def text_in_numbers(data: Data) -> Iterator[str]:
    """Yield a line for each field whose numbers are text in the annotation file of a data set."""
    for fields in NUMBERS if data.raw is not None else ():
        entries = []
        for part, field in fields:
            for entry in data.raw.dataset.get(part, ()):
                value = entry.get(field)
                values = value if isinstance(value, list) else [value]
                entries.append((f'{part}: {field}', entry.get('id'), values))
        texts = [one for one in entries if any(isinstance(value, str) for value in one[2])]
        if texts and (len(fields) == 1 or len(texts) < len(entries)):
            names = listed(dict.fromkeys(name for name, _, _ in texts))
            first = next(value for value in texts[0][2] if isinstance(value, str))
            rule = f'{data.place}: {names}: expected numbers, got text, {first!r}; write numbers '
            yield from lines_for(f'{rule}without quotation marks; id', [key for _, key, _ in texts])


# All data sets together, and the model.


@check('class-count', ERROR, TOGETHER)
def class_count(run: Run) -> Iterator[str]:
    """The model predicts another number of classes than the data has."""
    predicted = predicted_classes(run.cfg.get('model'))
    for data in run.sets:
        # In panoptic data, heads of instances predict only the things among the classes.
        heads = [(key, count) for key, count in predicted if count != data.things]
        if data.classes and not data.config.get('return_classes'):  # names read as a text
            for problem in class_count_problems(heads, data.classes, data.loader):
                yield problem + one_folder_too_deep(data)


@check('class-lists', ERROR, TOGETHER)
def class_lists(run: Run) -> Iterator[str]:
    """The splits have other classes, or in another order."""
    known = [data for data in run.sets if data.classes]
    for data in known[1:]:
        first = known[0]
        where = f'{data.loader}.dataset'
        problem = class_list_problem(first.classes, first.loader, data.classes, where)
        if problem is not None:
            yield problem


@check('image-scale', WARNING, TOGETHER)
def image_scale(run: Run) -> Iterator[str]:
    """Images are resized to very different sizes in training and evaluation."""
    trained = [size for data in run.sets if data.is_trained for size in data.loaded.scales]
    sides = [math.sqrt(math.prod(size)) for size in trained]
    for data in (*run.sets, *run.measured):
        sizes = data.loaded.scales
        if data.is_trained or not sizes or not trained:
            continue
        middle = statistics.median_high(math.sqrt(math.prod(size)) for size in sizes)
        trained_middle = statistics.median_high(sides)
        lowest = max(min(sides) / APART, trained_middle / MEDIANS_APART)
        highest = min(max(sides) * APART, trained_middle * MEDIANS_APART)
        if not lowest <= middle <= highest:
            yield (
                f'{data.loader}: whole images are resized to {size_text(sizes)}, but images '
                f'of train_dataloader to {size_text(trained)}, half of them to '
                f'{trained_middle:.0f} x {trained_middle:.0f} or more: objects have '
                "other sizes than in training; set the scale of the test pipeline's Resize"
            )


@check('input-values', WARNING, TOGETHER)
def input_values(run: Run) -> Iterator[str]:
    """mean and std are for pixels of another range than those that are loaded."""
    for data in run.sets:
        pixels = [image[::4, ::4].ravel() for _, image in data.loaded.images[:FIRST_IMAGES]]
        inputs = network_inputs(run.cfg, data)
        if not pixels or not inputs:
            continue
        loaded = np.concatenate(pixels)
        read = np.concatenate(inputs)
        largest = float(loaded.max())
        is_wrong = np.abs(read).max() > max(WIDE, 2 * largest)
        is_wrong |= iqr(read) < FLAT and iqr(loaded) > FLAT * largest
        if starts_from_our_weights(run.cfg):
            is_wrong |= max(abs(read.mean()), read.std()) > WIDE
        if is_wrong:
            yield (
                f'{data.loader}: expected mean and std for pixels of 0 … {largest:g}, as they are '
                f'loaded, got mean and std that make {read.min():.3g} … {read.max():.4g} of them; '
                "ImageNet's are mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375] for "
                '0 … 255, and a 255th of these for 0 … 1'
            )
            return


def iqr(values: NDArray[Any]) -> float:
    """Return the interquartile range: random erasing changes the standard deviation."""
    lower, upper = np.percentile(values, [25, 75])
    return float(upper - lower)


def network_inputs(cfg: Config, data: Data) -> list[NDArray[Any]]:
    """Return values of a data set's first samples as its preprocessor gives them to the network."""
    settings = cfg.model.get('module', cfg.model).get('data_preprocessor')
    preprocessor = None
    with contextlib.suppress(Exception):  # a model may have none, or give it a type
        preprocessor = MODELS.build(settings)
    inputs = []
    for _, item in data.loaded.items[:FIRST_IMAGES]:
        batch = {'inputs': [item['inputs']], 'data_samples': [copy.deepcopy(item['data_samples'])]}
        if preprocessor is not None:
            with contextlib.suppress(Exception):  # of samples that it reads in training only
                batch = preprocessor(batch, training=False)
        inputs.append(np.asarray(batch['inputs'][0], float)[..., ::4, ::4].ravel())
    return inputs


def starts_from_our_weights(cfg: Config) -> bool:
    """Whether the backbone is one of mmpola's and the config names weights."""
    backbone = type_class((cfg.model.get('backbone') or {}).get('type'), MODELS)
    is_ours = getattr(backbone, '__module__', '').startswith('mmpola.')
    has_weights = any(is_pretrained(node) for _, node in nodes(cfg.model, 'model'))
    return is_ours and bool(has_weights or cfg.get('load_from'))


@check('object-limits', WARNING, TOGETHER)
def object_limits(run: Run) -> Iterator[str]:
    """Images have more objects than the model returns or AP counts."""
    for data in run.sets:
        objects = known_boxes(data)
        low = {}
        for key, limit in limits_of(run.cfg, data):
            if excess(data, [objects.image], limit):
                low[key] = limit
        if low:
            text = excess(data, [objects.image], min(low.values()))
            yield f'{data.loader}: {text}, which is all that the model finds: raise {listed(low)}'
        text = excess(data, [objects.image, objects.label], COUNTED)
        for split in data.splits if text else ():
            for key, evaluator in evaluators(run.cfg, split):
                if {'bbox', 'segm'} & set(metrics_of(evaluator)):
                    most = max(evaluator.get('proposal_nums') or (1000,))
                    yield (
                        f"{key}: {text} of one class, which is all that COCO's mAP counts; mAP_50 "
                        f'and mAP_75 count {most}'
                    )


def limits_of(cfg: Config, data: Data) -> Iterator[tuple[str, int]]:
    """Yield (config key, number) of each limit of objects per image that a data set meets."""
    for key, node in nodes(cfg.get('model'), 'model'):
        parts = key.split('.')
        is_met = 'train_cfg' not in parts or data.is_trained
        if 'test_cfg' in parts:
            is_met = data.splits != ['train']
        for name in LIMITS if is_met else ():
            limit = node.get(name)
            if isinstance(limit, int) and limit > 0:
                yield f'{key}.{name}', limit


def excess(data: Data, groups: list[Any], limit: int) -> str:
    """Say how many images have more objects to learn from than a limit; '' if few are beyond it.

    Args:
        data: a data set.
        groups: the image of each object, or image and class, in which the objects are counted.
        limit: the number of objects.
    """
    rows, numbers = np.unique(np.column_stack(groups), axis=0, return_counts=True)
    beyond = numbers > limit
    if (numbers - limit)[beyond].sum() <= FEW_OBJECTS * numbers.sum():
        return ''
    images = len(np.unique(rows[beyond, 0]))
    return (
        f'{images} of {data.images} images have more than {limit} objects (most: {numbers.max()})'
    )


@check('evaluation-batch', WARNING, TOGETHER)
def evaluation_batch(run: Run) -> Iterator[str]:
    """Images of unequal sizes share a validation or test batch: results depend on the padding."""
    for split in [split for split in run.splits if split != 'train']:
        count = (run.cfg.get(f'{split}_dataloader') or {}).get('batch_size') or 1
        sets = [data for data in run.sets if split in data.splits and not data.is_trained]
        sizes = [size for data in sets for size in data.loaded.sizes]
        if count > 1 and len(set(sizes)) > 1:
            yield (
                f'{split}_dataloader.batch_size: {count} images of unequal sizes '
                f'({size_text(sizes)}) are padded to one, which attention and GroupNorm read: '
                'results depend on the others in the batch, but predict reads one image at a time; '
                'set batch_size=1'
            )


# Evaluators, which judge predictions by annotations.


@check('outer-pipeline', ERROR, TOGETHER)
def outer_pipeline(run: Run) -> Iterator[str]:
    """The pipeline of a wrapper, such as MultiImageMixDataset, fails."""
    for split in run.splits if run.whole else ():
        dataset = (run.cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
        wrappers = [node for _, node in nodes(dataset, '') if {'dataset', 'datasets'} & set(node)]
        if not any('pipeline' in wrapper for wrapper in wrappers):
            continue
        index = 0
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                built = DATASETS.build(dict(dataset))
                for index in range(min(FEW, len(built))):  # what is random fails at times only
                    built[index]
        except Exception as error:  # transforms raise exceptions of any type
            yield f'{split}_dataloader.dataset: sample {index} fails: {first_line(error)}'


def evaluators_with_data(run: Run) -> Iterator[tuple[str, dict[str, Any], list[Data]]]:
    """Yield (config key, dict, data sets of its split) of every dict in an evaluator."""
    for split in run.splits:
        sets = [data for data in run.sets if split in data.splits]
        for key, evaluator in evaluators(run.cfg, split):
            if sets and all(data.is_read for data in sets):
                yield key, evaluator, sets


def truth_of(evaluator: dict[str, Any], sets: list[Data]) -> Any:
    """Return the file of an evaluator as mmdet's COCO API reads it.

    None if it is in another format, or lacks images of its data sets or annotates them otherwise.
    """
    if not evaluator.get('ann_file'):
        return None
    path = Path(evaluator['ann_file']).resolve()
    truths = sets[0].truths
    key = (path, *(data.place for data in sets))
    if key not in truths:  # several checks ask
        truths[key] = read_truth(path, sets)
    return truths[key]


def read_truth(path: Path, sets: list[Data]) -> Any:
    """Read the file of an evaluator, unless it is a data set's, and compare it, see `truth_of`."""
    files = {place.resolve(): data.raw for data in sets for place in data.paths}
    coco = files.get(path)
    if path not in files and sets[0].raw is not None:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            coco = type(sets[0].raw)(str(path))
    if coco is None or not all(is_annotated_in(coco, data) for data in sets):
        return None
    return coco


def is_annotated_in(coco: Any, data: Data) -> bool:
    """Whether a file has every image of a data set, with its name and its boxes."""

    def described(file: Any, image: Any) -> tuple[str, Counter[Any]]:
        name = os.path.basename(file.imgs.get(image, {}).get('file_name', ''))
        boxes = [one.get('bbox') or () for one in file.imgToAnns.get(image, ())]
        return name, Counter(map(tuple, boxes))

    if data.raw is None or data.raw is coco:
        return data.raw is coco
    return all(described(coco, image) == described(data.raw, image) for image in data.known.ids)


def with_file(run: Run) -> Iterator[tuple[str, dict[str, Any], list[Data], list[dict[str, Any]]]]:
    """Yield what `judged` does, and the annotations in the evaluator's file that it reads.

    These are of images that the file lists, and of the classes.
    """
    for key, evaluator, sets in evaluators_with_data(run):
        coco = truth_of(evaluator, sets)
        if coco is not None:
            names = {name for data in sets for name in data.classes}
            read = []
            for annotation in [one for image in coco.imgs for one in coco.imgToAnns.get(image, ())]:
                category = coco.cats.get(annotation.get('category_id'), {})
                if category.get('name') in names:
                    read.append(annotation)
            yield key, evaluator, sets, read


@check('evaluator-file', WARNING, TOGETHER)
def evaluator_file(run: Run) -> Iterator[str]:
    """An evaluator reads a file that is not the one of its split."""
    for key, evaluator, sets in evaluators_with_data(run):
        truth = evaluator.get('ann_file')
        files = [path.resolve() for data in sets for path in data.paths]
        is_other = truth and Path(truth).resolve() not in files
        if is_other and truth_of(evaluator, sets) is None:
            own = listed(data.place for data in sets)
            loader = f'{key.partition("_")[0]}_dataloader'
            yield (
                f'{key}.ann_file: expected an annotation file of '
                f'{loader} ({own}), got {truth}: predictions are compared with other images'
            )


@check('evaluator-sets', WARNING, TOGETHER)
def evaluator_sets(run: Run) -> Iterator[str]:
    """A metric reads the file of one of several data sets, or their images share ids."""
    for key, evaluator, sets in evaluators_with_data(run):
        split = key.partition('_')[0]
        whole = run.cfg[f'{split}_evaluator']
        has_own = (
            isinstance(whole, dict) and type_name(whole.get('type')) == 'MultiDatasetsEvaluator'
        )
        if len(sets) < 2 or has_own:
            continue
        ids = Counter(image for data in sets for image in data.known.ids - {None})
        shared = sum(count > 1 for count in ids.values())
        reads_ids = 'Coco' in type_name(evaluator.get('type'))
        is_of_one = evaluator.get('ann_file') and truth_of(evaluator, sets) is None
        if is_of_one or (reads_ids and shared):
            yield (
                f'{key}: {len(sets)} data sets in {split}_dataloader: {shared} '
                f'images share an id with another, and ann_file={evaluator.get("ann_file")}: '
                "predictions for one are compared with another's annotations; use type="
                "'MultiDatasetsEvaluator' with a metric and a prefix for each, or one file of all "
                'images with different ids'
            )


@check('truth-resized', ERROR, TOGETHER)
def truth_resized(run: Run) -> Iterator[str]:
    """A metric compares predictions in pixels of the file with boxes in pixels of the network."""
    for key, evaluator, sets in evaluators_with_data(run):
        if reads_boxes_of_samples(evaluator) and any(has_resized_boxes(data) for data in sets):
            yield (
                f'{key.partition("_")[0]}_dataloader.dataset.pipeline: expected LoadAnnotations '
                f'behind Resize, as {key} compares its boxes with predictions in pixels of the '
                'file, got boxes that Resize has changed'
            )


def reads_boxes_of_samples(evaluator: dict[str, Any]) -> bool:
    """Whether the code of a metric reads `gt_instances`, as VOCMetric's does."""
    code = ''
    with contextlib.suppress(OSError):  # of a class that is defined in no file
        for base in getattr(type_class(evaluator.get('type'), METRICS), '__mro__', ())[:-1]:
            code += inspect.getsource(base)
    return "['gt_instances']" in code


def has_resized_boxes(data: Data) -> bool:
    """Whether samples that are only evaluated have the boxes of their annotations, resized."""
    objects = known_boxes(data)
    for index, item in data.loaded.items if not data.is_trained else ():
        boxes = item['data_samples'].get('gt_instances', {}).get('bboxes', ())
        boxes = np.asarray(getattr(boxes, 'tensor', boxes))
        own = objects.box[objects.image == index]
        if boxes.shape != own.shape:
            continue
        resized = own * np.tile(scale_factor(item), 2)
        is_resized = (np.abs(boxes - resized) <= 1).all(1) & (np.abs(boxes - own) > 1).any(1)
        if is_resized.any():
            return True
    return False


@check('evaluator-outlines', ERROR, TOGETHER)
def evaluator_outlines(run: Run) -> Iterator[str]:
    """Outlines that pycocotools turns into an error after an epoch, or into another mask."""
    for _, evaluator, sets, entries in with_file(run):
        if 'segm' in metrics_of(evaluator):
            images = truth_of(evaluator, sets).imgs
            wrong = []
            for entry in entries:
                image = images[entry['image_id']]
                size = (image['width'], image['height'])
                if 'segmentation' in entry and not is_evaluated(entry['segmentation'], size):
                    wrong.append(entry.get('id'))
            yield from lines_for(
                f'{evaluator["ann_file"]}: ids of annotations with which the evaluation of masks '
                'fails or counts less: expected a list of polygons, the first one of at least '
                'three points and each with an even number of values, or run lengths for all '
                'pixels; correct them, or remove polygons of one or two points',
                wrong,
            )


def is_evaluated(outline: Any, size: tuple[float, float]) -> bool:
    """Whether pycocotools makes the mask that is meant of polygons or run lengths.

    It tells by the first polygon what a list holds; points and lines behind it change nothing.

    Args:
        outline: of an annotation in COCO layout.
        size: width and height of its image.
    """
    if isinstance(outline, dict):
        return covers(outline, size)
    if not isinstance(outline, list):
        return False
    if not outline or not all(isinstance(polygon, list) for polygon in outline):
        return False
    return not is_short(outline[0]) and not lacks_a_value(outline)


def metrics_of(evaluator: dict[str, Any]) -> list[str]:
    """List the metrics of an evaluator in COCO's way; none of others."""
    if not type_name(evaluator.get('type')).endswith('CocoMetric'):
        return []
    metrics = evaluator.get('metric') or 'bbox'
    return [metrics] if isinstance(metrics, str) else list(metrics)


@check('evaluator-fields', ERROR, TOGETHER)
def evaluator_fields(run: Run) -> Iterator[str]:
    """Annotations have no field that pycocotools reads in an evaluation."""
    for _, evaluator, _, entries in with_file(run):
        metrics = metrics_of(evaluator)
        if not metrics:
            continue
        fields = ['iscrowd', 'area']
        if 'segm' in metrics:
            fields.append('segmentation')
        for field in fields:
            count = sum(field not in entry for entry in entries)
            if count:
                yield (
                    f'{evaluator["ann_file"]}: {count} of {len(entries)} annotations have no '
                    f'{field!r}, without which evaluation fails; write {REMEDIES[field]}'
                )


@check('annotation-id-0', WARNING, TOGETHER)
def annotation_id_0(run: Run) -> Iterator[str]:
    """An annotation has the id 0, which pycocotools takes for no match."""
    for _, evaluator, _, entries in with_file(run):
        if any(entry.get('id') == 0 for entry in entries):
            yield (
                f'{evaluator["ann_file"]}: an annotation has the id 0 and counts as never found; '
                'number them from 1'
            )


@check('evaluator-images', WARNING, TOGETHER)
def evaluator_images(run: Run) -> Iterator[str]:
    """The file of an evaluator has annotated images that are not evaluated."""
    for key, _, sets, entries in with_file(run):
        annotated = {entry['image_id'] for entry in entries}
        known = {image for data in sets for image in data.known.ids}
        if not annotated <= known:
            yield (
                f'{key}.ann_file: {len(annotated & known)} of {len(annotated)} images with objects '
                'are evaluated, AP counts the others as missed; give evaluator and data set a file '
                'of these images only, instead of indices or filter_cfg'
            )


@check('evaluator-ignore-index', WARNING, TOGETHER)
def evaluator_ignore_index(run: Run) -> Iterator[str]:
    """IoUMetric ignores another label than the heads."""
    for key, evaluator, sets in evaluators_with_data(run):
        is_iou = type_name(evaluator.get('type')).endswith('IoUMetric')
        ignored = evaluator.get('ignore_index', 255)
        head = head_ignore_index(run.cfg.get('model'))
        if is_iou and ignored != head and any(data.labels.unit == PIXELS for data in sets):
            yield (
                f'{key}.ignore_index: expected {head} as in model.decode_head, got {ignored}: '
                'pixels without a label count as wrong'
            )


# Copies of photographs.


@check('same-images', WARNING, TOGETHER)
def same_images(run: Run) -> Iterator[str]:
    """Validation or test reads files that training learns from, or versions of its photographs."""
    trained = [data for data in run.sets if data.is_trained]
    files = {name for data in trained for name in image_files(data)}
    photographs = set()
    for data in trained:
        photographs |= {versioned_photograph(name, data) for name in image_files(data)}
    photographs.discard('')
    for data in run.sets:
        evaluated = [split for split in data.splits if split != 'train']
        if not evaluated:
            continue
        same = images_among(image_files(data), files, run.whole)
        others = [name for name in image_files(data) if name not in same]
        versions = [name for name in others if versioned_photograph(name, data) in photographs]
        for found, what in (
            (same, 'in train_dataloader too, as equal files'),
            (versions, 'by name (NAME.rf.HASH) versions of photographs in train_dataloader too'),
        ):
            if found:
                yield (
                    f'{evaluated[0]}_dataloader: {len(found)} of {data.images} images are {what} '
                    f'({listed(found, 3)}): a model is not judged by what it was trained on'
                )


def image_files(data: Data) -> list[str]:
    """List the images of a data set that are files."""
    return [name for name in data.known.names if isinstance(name, str)]


def versioned_photograph(path: str, data: Data) -> str:
    """Return the name of the photograph that Roboflow made this file from; '' for other files.

    In class folders, versions are beside others of the same class.
    """
    folder, file = os.path.split(path)
    name = photograph(file)
    if name == file:
        return ''
    return os.path.join(os.path.basename(folder), name) if data.labels.unit == SAMPLES else name


def images_among(names: Sequence[str], others: set[str], whole: bool) -> set[str]:
    """Return the images that are among others: the same file, or an equal one."""
    folder_of = functools.lru_cache(maxsize=None)(os.path.realpath)

    def real(path: str) -> str:
        return os.path.join(folder_of(os.path.dirname(path)), os.path.basename(path))

    known = {real(name) for name in others}
    found = {name for name in names if real(name) in known}
    if whole or len(names) + len(known) <= MANY_IMAGES:
        found |= equal_files([name for name in names if name not in found], known)
    return found


def equal_files(names: Sequence[str], others: set[str]) -> set[str]:
    """Return the files whose content another file has."""
    by_size: dict[int, list[str]] = {}
    for path in others:
        if os.path.isfile(path):
            by_size.setdefault(os.path.getsize(path), []).append(path)
    middles = functools.lru_cache(maxsize=None)(middle_of)
    found = set()
    for name in names:
        size = os.path.getsize(name) if os.path.isfile(name) else -1
        alike = [path for path in by_size.get(size, ()) if middles(path) == middles(name)]
        if any(filecmp.cmp(name, path, shallow=False) for path in alike):
            found.add(name)
    return found


def middle_of(path: str) -> int:
    """Return a hash of the bytes in the middle of a file."""
    with open(path, 'rb') as file:
        file.seek(max(0, os.path.getsize(path) - MIDDLE) // 2)
        return hash(file.read(MIDDLE))
