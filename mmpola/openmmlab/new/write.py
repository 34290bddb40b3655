"""Writes the config, and what it reads beside the user's own files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mmengine.config import Config
from PIL import Image
from pycocotools import mask as run_lengths
from tqdm import tqdm

from mmpola.command import PACKAGE, repository_path
from mmpola.messages import UsageError, counted, first_line
from mmpola.openmmlab.config.contents import evaluators, nodes, predicted_classes, type_name
from mmpola.openmmlab.new.decide import counts_text
from mmpola.openmmlab.new.description import (
    BOXES,
    CLASSES,
    LABEL_MAPS,
    OUTLINES,
    Folder,
    Found,
    Instance,
    Sample,
)
from mmpola.openmmlab.new.maps import NO_LABEL, as_colours, is_plain, map_values
from mmpola.zoo import EVERYDAY_DETECTOR

RECIPES = {
    BOXES: 'faster_rcnn_pola_swin_small',
    OUTLINES: 'mask_rcnn_pola_swin_small',
    LABEL_MAPS: 'semantic_fpn_pola_swin_small',
    CLASSES: 'finetune_pola_swin_nano',
}

MANY_CLASSES = 12
"""The names of more classes are in a file beside the config."""

ROUNDING = 1
"""Pixels by which a box may leave its image."""

RESIZES = ('Resize', 'RandomResize')
"""Steps of pipelines whose `scale` is the size of the network's input."""

Arguments = dict[str, dict[str, Any]]
"""Split -> what its data set gets, such as `ann_file`; '' -> what all of them get."""


class Plan(NamedTuple):
    """What the config will say besides the data.

    Attributes:
        base: the text behind `_base_ =`.
        cfg: the config that it names.
        is_recipe: whether it is one of `RECIPES`.
        size: width and height in pixels; None: as the base has it.
        batch: images per step of a recipe.
        epochs: of a recipe; 0: as the base has it.
    """

    base: str
    cfg: Config
    is_recipe: bool
    size: tuple[int, int] | None = None
    batch: int = 0
    epochs: int = 0


def base_of(model: str | None, task: str) -> Plan:
    """Return the config to inherit from.

    Raises:
        UsageError: there is no such config, or it cannot be read.
    """
    name = (model or RECIPES[task]).removesuffix('.py').removeprefix('configs/')
    path = f'{name}.py'
    text = repr(path)
    if '::' not in name:
        path = str(repository_path(f'configs/{name}.py'))
        text = repr(path)
        if not Path(path).is_file():
            rule = "expected a config of mmpola's, or mmdet::… or mmseg::…"
            raise UsageError(f'--model: {rule}, got {model}')
        if (PACKAGE / '.mim').exists():
            text = f"__import__('mmpola').__path__[0] + '/.mim/configs/{name}.py'"
    try:
        cfg = Config.fromstring(f'_base_ = {path!r}', '.py')
    except Exception as error:  # a config is a program, which can raise anything
        raise UsageError(f'--model: {model}: {first_line(error)}') from error
    return Plan(text, cfg, name in RECIPES.values())


def task_of(cfg: Config) -> str:
    """Return the task that the model of a config learns."""
    keys = {key.rpartition('.')[2] for key, _ in nodes(cfg.get('model'), 'model')}
    if 'decode_head' in keys:
        return LABEL_MAPS
    if type_name(cfg.model.get('type')) == 'ImageClassifier':
        return CLASSES
    return OUTLINES if {'mask_head', 'panoptic_head'} & keys else BOXES


def mend_objects(found: Found) -> None:
    """Cut boxes at the border of their image, and leave out those without extent.

    Objects get their box as outline where they have none that can be read.
    """
    outside = 0
    empty = 0
    bare = 0
    for sample in found.samples:
        kept = []
        for one in sample.objects:
            x, y, width, height = one.box
            left, right = np.clip([x, x + width], 0, sample.size[0]).tolist()
            top, bottom = np.clip([y, y + height], 0, sample.size[1]).tolist()
            if not (right - left >= 1 and bottom - top >= 1):  # NaN is not either
                empty += 1
                continue
            outline = None
            if found.task == OUTLINES:
                outline = usable_outline(one, sample)
            if found.task == OUTLINES and outline is None:
                bare += 1
                outline = [[left, top, right, top, right, bottom, left, bottom]]
            if max(left - x, top - y, x + width - right, y + height - bottom) > ROUNDING:
                outside += 1
                one = one._replace(box=(left, top, right - left, bottom - top))
            kept.append(one._replace(outline=outline))
        sample.objects = kept
    if outside:
        found.notes.append(f'cut at the border of their image: {counted(outside, "object")}')
    if empty:
        text = counted(empty, 'object')
        found.notes.append(f'left out: {text} smaller than a pixel, or outside of the image')
    if bare:
        text = counted(bare, 'object')
        found.notes.append(f'{text} without an outline that can be read: their boxes stand in')
    if outside or empty or bare:
        found.files.clear()


def usable_outline(one: Instance, sample: Sample) -> Any:
    """Return an outline that pycocotools can read; None if there is none."""
    width, height = sample.size
    if isinstance(one.outline, dict):
        return one.outline if list(one.outline.get('size') or ()) == [height, width] else None
    polygons = []
    for polygon in one.outline or ():
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            continue
        points = np.array(polygon, float)
        if np.isfinite(points).all():
            points[0::2] = points[0::2].clip(0, width)
            points[1::2] = points[1::2].clip(0, height)
            polygons.append(points.round(2).tolist())
    return polygons or None


def write_coco(found: Found, split: str, path: Path, root: Path) -> None:
    """Write the objects of a split as a file in COCO's format, with paths inside `root`."""
    numbers = {name: number for number, name in enumerate(found.classes, 1)}
    images = []
    annotations: list[dict[str, Any]] = []
    for number, sample in enumerate(found.of(split), 1):
        width, height = sample.size
        name = os.path.relpath(sample.image, root)
        images.append(dict(id=number, file_name=name, width=width, height=height))
        for one in sample.objects:
            annotation = dict(
                id=len(annotations) + 1,
                image_id=number,
                category_id=numbers[one.name],
                bbox=[round(float(value), 2) for value in one.box],
                area=float(one.box[2] * one.box[3]),
                iscrowd=int(one.is_ignored),
            )
            if one.outline is not None:
                runs = one.outline
                if isinstance(runs, list):
                    runs = run_lengths.merge(run_lengths.frPyObjects(runs, height, width))
                elif isinstance(runs['counts'], list):
                    runs = run_lengths.frPyObjects(runs, height, width)
                annotation.update(segmentation=one.outline, area=float(run_lengths.area(runs)))
            annotations.append(annotation)
    categories = [dict(id=number, name=name) for name, number in numbers.items()]
    content = dict(images=images, annotations=annotations, categories=categories)
    path.write_text(json.dumps(content))


def object_files(found: Found, folder: Path, final: Path, root: Path) -> Arguments:
    """Write files in COCO's format for splits whose own cannot be read.

    Args:
        found: boxes or outlines.
        folder: to write into.
        final: its name when all is written.
        root: the folder of the images.
    """
    shared: dict[str, Any] = {'type': 'CocoDataset', 'data_root': f'{root}/'}
    arguments: Arguments = {'': shared}
    if not found.files:
        shared['data_prefix'] = {'img': ''}
    for split in found.splits:
        if found.files:
            file, prefix = found.files[split]
            inside = {'img': os.path.relpath(prefix, root)}
            arguments[split] = {'ann_file': os.path.relpath(file, root), 'data_prefix': inside}
        else:
            write_coco(found, split, folder / f'{split}.json', root)
            arguments[split] = {'ann_file': f'{final}/{split}.json'}
    return arguments


def class_links(found: Found, folder: Path, final: Path, root: Path) -> Arguments:
    """Write a folder of links for each split, unless the user's folders are the splits."""
    arguments: Arguments = {'': {}}
    for split in found.splits:
        place = str(final / split)
        if found.files:
            place = str(found.files[split][0])
        else:
            for sample in found.of(split):
                name = '_'.join(Path(os.path.relpath(sample.image, root)).parts)
                link = folder / split / sample.name / name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(sample.image)
        arguments[split] = {'root': place}
    for split in arguments.keys() - {'', 'train'}:
        arguments[split]['classes'] = arguments['train']['root']
    return arguments


def label_map_files(found: Found, folder: Path, final: Path, root: Path) -> Arguments:
    """Write a list of each split and, where mmseg cannot read the user's, the label maps."""
    named = {split: common_names(found, found.of(split)) for split in found.splits}
    suffixes = {names and names.suffixes for names in named.values()}
    if len(suffixes) > 1 or None in suffixes:
        convert_maps(found, folder / 'labels', root)
        for split in named:
            names = [os.path.relpath(sample.image, root) for sample in found.of(split)]
            named[split] = Names(names, ('', '.png'), (f'{root}/', f'{final}/labels'))
    arguments: Arguments = {'': {'type': 'BaseSegDataset'}}
    for split, one in named.items():
        assert one is not None
        shared = dict(zip(('img_suffix', 'seg_map_suffix'), one.suffixes, strict=True))
        arguments[''].update(shared)
        (folder / f'{split}.txt').write_text('\n'.join(one.names) + '\n')
        prefix = dict(zip(('img_path', 'seg_map_path'), one.folders, strict=True))
        arguments[split] = {'ann_file': f'{final}/{split}.txt', 'data_prefix': prefix}
    return arguments


class Names(NamedTuple):
    """How mmseg finds the pairs of a split.

    Attributes:
        names: what the paths of an image and of its label map share, for each pair.
        suffixes: what follows the name, of images and of label maps.
        folders: what precedes it.
    """

    names: list[str]
    suffixes: tuple[str, str]
    folders: tuple[str, str]


def common_names(found: Found, samples: list[Sample]) -> Names | None:
    """Return how mmseg can read the user's own label maps; None if it cannot."""
    is_same = all(value == number for value, number in found.values.items())
    if not is_same or not all(is_plain(Path(str(sample.label_map))) for sample in samples):
        return None
    images = [str(sample.image) for sample in samples]
    maps = [str(sample.label_map) for sample in samples]
    image_folder = os.path.commonpath([os.path.dirname(path) for path in images])
    map_folder = os.path.commonpath([os.path.dirname(path) for path in maps])
    image = os.path.relpath(images[0], image_folder)
    label_map = os.path.relpath(maps[0], map_folder)
    same = 0
    longest = min(len(os.path.splitext(one)[0]) for one in (image, label_map))
    while same < longest and image[same] == label_map[same]:
        same += 1
    name = image[:same].rstrip('._-')
    image_suffix = image[len(name) :]
    map_suffix = label_map[len(name) :]
    names = []
    for path, other in zip(images, maps, strict=True):
        name = os.path.relpath(path, image_folder).removesuffix(image_suffix)
        is_named = os.path.join(image_folder, name + image_suffix) == path
        if not is_named or os.path.join(map_folder, name + map_suffix) != other:
            return None
        names.append(name)
    return Names(names, (image_suffix, map_suffix), (image_folder, map_folder))


def convert_maps(found: Found, folder: Path, root: Path) -> None:
    """Write label maps as PNG files with the numbers of the classes: LABELS/PATH OF IMAGE.png."""
    table = np.full(256, NO_LABEL, np.uint8)
    colours = {value: number for value, number in found.values.items() if value > NO_LABEL}
    for value, number in found.values.items():
        if value <= NO_LABEL:
            table[value] = number
    known = np.array(sorted(colours))
    numbers = np.array([colours[value] for value in sorted(colours)], np.uint8)
    for sample in tqdm(found.samples, 'converting label maps', leave=False, disable=None):
        values = map_values(Path(str(sample.label_map)))
        if colours:
            if values.dtype == np.uint8:
                values = as_colours(values)
            pixels = numbers[np.searchsorted(known, values)]
        else:
            pixels = table[values]
        path = folder / f'{os.path.relpath(sample.image, root)}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


def config_text(
    found: Found, plan: Plan, arguments: Arguments, source: Folder, out: Path, final: Path
) -> str:
    """Return the text of the config.

    Args:
        found: the data.
        plan: what to inherit from, and what to change.
        arguments: of the data sets.
        source: the user's folder.
        out: the config's file.
        final: the folder with what the config reads beside the user's files.
    """
    model = type_name(plan.cfg.model.get('type'))
    images = ', '.join(counts_text(found))
    title = f'{model} for {source.root.name}: {images} images; written by `mmpola new`.'
    lines = [f'"""{title}"""', '']
    lines += [f'_base_ = {plan.base}', '']
    places = {'images': f'{source.root}/', 'files': f'{final}/'}
    shared = dict(arguments[''])
    loaders = []
    for split in ('train', 'val', 'test'):
        own = arguments.get(split) or arguments['val']
        inner = written(own, places)
        if found.task != CLASSES:
            inner = f'**data, {inner}'
        depth = wrappers(plan.cfg, split)
        wrapped = 'dict(dataset=' * depth + f'dict({inner})' + ')' * depth
        if (
            split == 'train'
            and plan.is_recipe
            and plan.batch != plan.cfg.train_dataloader.batch_size
        ):
            wrapped += f', batch_size={plan.batch}'
        comment = '  # there are no test images' if split not in arguments else ''
        loaders.append(f'{split}_dataloader = dict(dataset={wrapped}){comment}')
        for key, evaluator in evaluators(plan.cfg, split):
            if 'ann_file' in evaluator:
                file = os.path.join(shared.get('data_root', ''), own['ann_file'])
                text = written({'ann_file': file}, places).replace('=', ' = ', 1)
                loaders.append(f'_base_.{subscripted(key)}.{text}')
    data = []
    if found.task != CLASSES:
        names = repr(tuple(found.classes))
        if len(found.classes) > MANY_CLASSES:
            names = "tuple(open(files + 'classes.txt').read().splitlines())"
        data.append(f'metainfo = dict(classes={names})')
        data.append(f'data = dict({written(shared, places)}, metainfo=metainfo)')
    text = '\n'.join(data + loaders)
    lines += [
        f'{name} = {place!r}' for name, place in places.items() if re.search(rf'\b{name}\b', text)
    ]
    lines += [*data, *loaders, '']
    for key, _ in predicted_classes(plan.cfg.model):
        lines.append(f'_base_.{subscripted(key)} = {len(found.classes)}')
    if found.task == LABEL_MAPS:
        for key, node in nodes(plan.cfg._cfg_dict, ''):
            if 'dataloader' in key and node.get('reduce_zero_label') and 'pipeline' in key:
                lines.append(f'_base_.{subscripted(key)}.reduce_zero_label = False')
    if plan.is_recipe and found.task in (BOXES, OUTLINES):
        start = f"load_from = 'mmpola://{EVERYDAY_DETECTOR}'"
        lines.append(f'{start}  # a detector of everyday things, with one box layer:')
        lines.append('_base_.model.roi_head.bbox_head.reg_class_agnostic = True')
    lines += setting_lines(found, plan)
    return '\n'.join(lines) + '\n'


def setting_lines(found: Found, plan: Plan) -> list[str]:
    """Return the lines of size and length: only what differs from the base."""
    lines = []
    if plan.size is not None and found.task == CLASSES:
        if plan.size[0] != plan.cfg.train_dataloader.dataset.transform.input_size:
            for split in ('train', 'val', 'test'):
                key = f'{split}_dataloader.dataset.transform.input_size'
                lines.append(f'_base_.{key} = {plan.size[0]}')
    elif plan.size is not None:
        for key, node in nodes(plan.cfg._cfg_dict, ''):
            is_step = 'dataloader' in key and type_name(node.get('type')) in RESIZES
            if is_step and tuple(node.get('scale') or ()) != plan.size:
                lines.append(f'_base_.{subscripted(key)}.scale = {plan.size}')
    if lines:
        lines[0] += '  # pixels; larger finds smaller things, slower'
    if plan.epochs and plan.epochs != plan.cfg.train_cfg.max_epochs:
        text = f'{plan.epochs}  # more if the curves still rise'
        lines.append(f'_base_.train_cfg.max_epochs = {text}')
        begin = plan.cfg.param_scheduler[1].begin
        end = f'end={plan.epochs}, T_max={max(1, plan.epochs - begin)}'
        lines.append(f'_base_.param_scheduler[1].update({end})')
    if not plan.is_recipe and plan.cfg.get('auto_scale_lr', {}).get('base_batch_size'):
        lines.append('auto_scale_lr = dict(enable=True)  # the learning rate follows the batch')
    return lines


def written(arguments: dict[str, Any], places: dict[str, str]) -> str:
    """Return arguments as they stand in a call: dicts as a call, paths by the name of a place."""
    texts = []
    for key, value in arguments.items():
        text = repr(value)
        if isinstance(value, dict):
            text = f'dict({written(value, places)})'
        for name, place in places.items():
            if isinstance(value, str) and value.startswith(place):
                text = f'{name} + {value[len(place) :]!r}' if value != place else name
        texts.append(f'{key}={text}')
    return ', '.join(texts)


def wrappers(cfg: Config, split: str) -> int:
    """Return how many data sets are around the one of a split, such as RepeatDataset."""
    depth = 0
    dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
    while 'dataset' in dataset:
        dataset = dataset['dataset']
        depth += 1
    return depth


def subscripted(key: str) -> str:
    """Return a dotted key as Python reads it: 'bbox_head.0.num_classes' with [0]."""
    parts = [f'[{part}]' if part.isdigit() else f'.{part}' for part in key.split('.')]
    return ''.join(parts).removeprefix('.')
