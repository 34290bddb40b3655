"""Label maps beside images: which map is of which image, and what its values stand for."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.registry import DATASETS
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from mmpola.messages import UsageError, counted, first_line, listed
from mmpola.openmmlab.new.description import (
    LABEL_MAPS,
    SPLIT_OF,
    Folder,
    Found,
    Sample,
    lines_of,
    split_of,
)

MAP_WORDS = {
    *('mask', 'masks', 'label', 'labels', 'labelmap', 'labelmaps', 'annotation', 'annotations'),
    *('ann', 'annot', 'annots', 'anns', 'gt', 'gtfine', 'groundtruth', 'seg', 'segmentation'),
    *('segmentations', 'segmentationclass', 'segmentationclasspng', 'trimap', 'trimaps', 'l'),
    *('labelids', 'labeltrainids', 'dir'),
}
"""Words in names of folders, and at the ends of names of files, that hold label maps."""

OTHER_MAPS = re.compile(
    r'(_instanceIds|_color|_polygons)\.|SegmentationObject|SegmentationClassVisualization'
)
"""Maps of Cityscapes and Pascal VOC that number objects, or are for people."""

CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""Cityscapes' labelIds of the 19 classes that are evaluated, in the order of labelTrainIds."""

VOID = {'void', 'unlabelled', 'unlabeled', 'ignore', '__ignore__', 'ignored', 'no label'}
"""Names of what is no class: such pixels are not learned."""

NO_LABEL = 255
LOSSY = ('.jpg', '.jpeg', '.jfif')
MOST_COLOURS = 64


def read_label_maps(folder: Folder) -> Found | None:
    """Read images that have a label map with the same stem, in another folder or with a suffix."""
    maps: dict[str, list[str]] = {}
    photographs = []
    for path in folder.images:
        if OTHER_MAPS.search(path):
            continue
        if is_map(path):
            maps.setdefault(plain_stem(path), []).append(path)
        else:
            photographs.append(path)
    lists = folder.lists('Segmentation')
    samples = []
    used = set()
    without = []
    for path in photographs:
        candidates = maps.get(plain_stem(path), [])
        if not candidates:
            without.append(path)
            continue
        near = {*Path(path).parts[:-1], split_of(path)}
        best = max(
            candidates,
            key=lambda one: (len(near & {*Path(one).parts, split_of(one)}), 'Train' in one),
        )
        used.add(best)
        split = lists.get(Path(path).stem.casefold(), '') or split_of(path)
        samples.append(Sample(folder.root / path, split, label_map=folder.root / best))
    unused = [
        one for group in maps.values() for one in group if one not in used and 'labelIds' not in one
    ]
    if not samples or (len(samples) < len(without) and not lists):
        return None
    example = os.path.relpath(samples[0].label_map or '', folder.root)
    own = os.path.relpath(samples[0].image, folder.root)
    found = Found(
        'label maps',
        f'{counted(len(samples), "pair")} such as {own} and {example}',
        LABEL_MAPS,
        samples,
    )
    if lists:
        found.samples = [sample for sample in samples if sample.split]
        if len(found.samples) < len(samples):
            found.notes.append(
                f'left out: {len(samples) - len(found.samples)} images that no list names'
            )
    if without:
        found.notes.append(
            f'left out: {counted(len(without), "image")} without a label map: {listed(without, 3)}'
        )
    if unused:
        found.notes.append(
            f'left out: {counted(len(unused), "label map")} without an image: {listed(unused, 3)}'
        )
    return found


def is_map(path: str) -> bool:
    """Whether the folder or the end of the name of a file says that it is a label map."""
    if any(folder_words(part) <= MAP_WORDS for part in Path(path).parts[:-1] if folder_words(part)):
        return True
    words = re.split(r'[_\-. ]+', Path(path).stem)
    return len(words) > 1 and words[-1].lower() in MAP_WORDS and not words[-1].lower().isdigit()


def folder_words(part: str) -> set[str]:
    """Return the words in the name of a folder, without those of splits: 'trainannot' has annot."""
    words = set(re.split(r'[^a-z]+', part.lower())) - {''}
    glued = re.fullmatch(r'(train|val|test)(annot|labels|masks|gt)', part.lower())
    if glued:
        return {glued[2]}
    return words - set(SPLIT_OF)


def plain_stem(path: str) -> str:
    """Return what the names of an image and of its label map share."""
    stem = Path(path).stem
    stem = re.sub(r'_(leftImg8bit|gtFine_label(Train)?Ids|gtCoarse_label(Train)?Ids)$', '', stem)
    words = re.split(r'([_\-. ]+)', stem)
    while len(words) > 2 and words[-1].lower() in {*MAP_WORDS, 'image', 'img', 'sat'}:
        words = words[:-2]
    return ''.join(words).casefold()


def read_values(found: Found, folder: Folder, wanted: list[str] | None) -> None:
    """Read all label maps, and decide what their values stand for: classes and values of `found`.

    Args:
        found: of `read_label_maps`; the pixels of its samples are counted.
        folder: which may have files with names.
        wanted: names of the classes that the user gives.

    Raises:
        UsageError: the values are no classes.
    """

    def count(sample: Sample) -> str | None:
        try:
            values = map_values(Path(str(sample.label_map)))
            with Image.open(sample.image) as file:
                sample.size = file.size
        except Exception as error:  # decoders raise exceptions of any type
            return f'{sample.image.name} ({first_line(error)})'
        if values.dtype == np.uint8:
            numbers = np.bincount(values.ravel())
            sample.pixels = Counter(
                {int(value): int(numbers[value]) for value in numbers.nonzero()[0]}
            )
        else:
            colours, numbers = np.unique(values, return_counts=True)
            sample.pixels = Counter(dict(zip(colours.tolist(), numbers.tolist(), strict=True)))
        return None

    with ThreadPoolExecutor() as threads:
        problems = list(
            tqdm(
                threads.map(count, found.samples),
                'label maps',
                len(found.samples),
                leave=False,
                disable=None,
            )
        )
    unreadable = [problem for problem in problems if problem]
    if unreadable:
        found.notes.append(
            f'left out: {len(unreadable)} pairs that cannot be read: {listed(unreadable, 3)}'
        )
        found.samples = [
            one for one, problem in zip(found.samples, problems, strict=True) if not problem
        ]
    is_coloured = any(max(sample.pixels) > NO_LABEL for sample in found.samples)
    total: Counter[Any] = Counter()
    for sample in found.samples:
        if is_coloured:  # a map may be black as a whole
            sample.pixels = Counter(
                {as_colour(value): number for value, number in sample.pixels.items()}
            )
        total.update(sample.pixels)
    if not total:
        raise UsageError(f'{folder.root}: expected label maps that can be read, got none')
    names, colours = named_values(folder, is_coloured)
    if wanted is not None:
        names = wanted
    first = str(found.samples[0].label_map)
    if is_coloured:
        values = coloured_classes(found, total, names, colours, folder)
    elif first.endswith('labelTrainIds.png') or first.endswith('labelIds.png'):
        names = list(DATASETS.get('mmseg.CityscapesDataset').METAINFO['classes'])
        ids = range(19) if first.endswith('TrainIds.png') else CITYSCAPES_IDS
        values = dict.fromkeys(total, NO_LABEL) | {value: label for label, value in enumerate(ids)}
        found.notes.append('values: those of Cityscapes, with its 19 classes')
    else:
        names, values = numbered_classes(found, total, names)
    voids = [number for number, name in enumerate(names or ()) if name.strip().casefold() in VOID]
    if not names:
        number = max(label for label in values.values() if label != NO_LABEL) + 1
        names = [f'class_{label}' for label in range(number)]
        found.notes.append(
            'no file names the classes: --classes NAME,NAME,… does, in the order of the numbers; '
            'what is called void is not learned'
        )
    if voids:
        found.notes.append(f'no class, and not learned: {listed(names[label] for label in voids)}')
        kept = [label for label in range(len(names)) if label not in voids]
        values = {
            value: kept.index(label) if label in kept else NO_LABEL
            for value, label in values.items()
        }
        names = [names[label] for label in kept]
    if len(names) > NO_LABEL:
        raise UsageError(
            f'{folder.root}: expected at most 255 classes in label maps, got {len(names)}'
        )
    found.classes = names
    found.values = values


def coloured_classes(
    found: Found, total: Counter[Any], names: list[str], colours: list[int], folder: Folder
) -> dict[Any, int]:
    """Return colour -> class; without a table of colours, fill `names`."""
    if not colours:
        colours = sorted(total)
        if len(colours) > MOST_COLOURS:
            example = Path(str(found.samples[0].label_map)).name
            raise UsageError(
                f'{folder.root}: expected label maps of few colours, such as {example}, got '
                f'{len(colours):,}: JPEG blurs them; write PNG, from the original'
            )
        if not names:
            names += [f'colour_{colour - packed(0, 0, 0):06x}' for colour in colours]
            text = (
                'no file names the colours: --classes NAME,NAME,… does, in the order of the table'
            )
            found.notes.append(text)
    if len(names) != len(colours):
        shown = '; '.join(map(colour_text, colours))
        rule = f'--classes: expected {len(colours)} names, for the colours {shown}'
        raise UsageError(f'{rule}, got {len(names)}')
    values = {colour: number for number, colour in enumerate(colours)}
    others = [colour for colour in total if colour not in values]
    if others:
        share = sum(total[colour] for colour in others) / total.total()
        text = f'{counted(len(others), "colour")} that the table does not have'
        examples = '; '.join(map(colour_text, others[:3]))
        found.notes.append(f'no class: {text}, {share:.2%} of the pixels ({examples})')
    return values | dict.fromkeys(others, NO_LABEL)


def numbered_classes(
    found: Found, total: Counter[Any], names: list[str]
) -> tuple[list[str], dict[Any, int]]:
    """Return names and value -> class for label maps of numbers."""
    occurring = sorted(total)
    if occurring in ([0, NO_LABEL], [NO_LABEL]):
        found.notes.append('values: 0 and 255, two classes')
        return names or ['background', 'object'], {0: 0, NO_LABEL: 1}
    numbers = [value for value in occurring if value != NO_LABEL]
    if len(numbers) < len(occurring):
        share = total[NO_LABEL] / total.total()
        found.notes.append(f'no class, and not learned: the value 255, {share:.1%} of the pixels')
    values = {value: value for value in occurring}
    if names and max(numbers) == len(names):
        share = total[0] / total.total()
        found.notes.append(
            f'values: the names count from 1; 0, {share:.1%} of the pixels, is no class'
        )
        values = {value: value - 1 for value in numbers} | {0: NO_LABEL, NO_LABEL: NO_LABEL}
    elif names and max(numbers) > len(names):
        rule = f'expected values 0 … {len(names) - 1} for {len(names)} names ({listed(names)})'
        got = f'got {listed(numbers, 20)}; --classes names the classes'
        raise UsageError(f'label maps: {rule}, {got}')
    elif not names and (numbers[0] > 0 or 4 * len(numbers) < numbers[-1] + 1):
        found.notes.append(f'values: {listed(numbers, 20)} are numbered from 0')
        values = {value: label for label, value in enumerate(numbers)} | {NO_LABEL: NO_LABEL}
    elif numbers == [0, 1] and not names:
        names = ['background', 'object']
    return names, values


def named_values(folder: Folder, is_coloured: bool) -> tuple[list[str], list[int]]:
    """Return the names of classes, and their colours, that a file beside the images has."""
    names: list[str] = []
    colours: list[int] = []
    table = folder.named(
        'class_dict.csv',
        'label_class_dict.csv',
        'labelmap.txt',
        'label_colors.txt',
        'labels_colors.txt',
    )
    if table is not None and is_coloured:
        for row in csv.reader(re.sub(r'[:;\t ]+', ',', line) for line in lines_of(table)):
            numbers = [int(word) for word in row if word.isdigit()]
            words = [word for word in row if re.search(r'[^\W\d]', word)]
            if len(numbers) >= 3 and words:
                names.append(words[0])
                colours.append(packed(numbers[0], numbers[1], numbers[2]))
        return names, colours
    text = folder.named('classes.txt', 'labels.txt', 'codes.txt', 'class_names.txt')
    if text is not None and not is_coloured:
        names = [line for line in lines_of(text) if line != '__ignore__']
    return names, colours


def packed(red: Any, green: Any, blue: Any) -> Any:
    """Return colours, 0 … 255, as numbers above 255, which no label is."""
    return (1 << 24) + (red << 16) + (green << 8) + blue


def as_colour(value: int) -> int:
    """Return a grey value as a packed colour; a colour as it is."""
    return packed(value, value, value) if value <= NO_LABEL else value


def as_colours(values: NDArray[np.uint8]) -> NDArray[Any]:
    """Return grey values as packed colours."""
    grey = values.astype(np.int32)
    return packed(grey, grey, grey)


def colour_text(colour: int) -> str:
    """Return a packed colour as 'red green blue'."""
    return f'{colour >> 16 & 255} {colour >> 8 & 255} {colour & 255}'


def map_values(path: Path) -> NDArray[Any]:
    """Read a label map.

    Returns:
        [H, W]: uint8 numbers; or int32 colours, see `packed`.
    """
    with Image.open(path) as file:
        image: Image.Image = file
        if file.mode in ('1', 'LA'):
            image = file.convert('L')
        elif file.mode not in ('L', 'P') and not file.mode.startswith('I'):
            image = file.convert('RGB')
        pixels = np.asarray(image)
    if pixels.ndim == 3:
        red, green, blue = np.moveaxis(pixels.astype(np.int32), 2, 0)
        if not ((red == green) & (green == blue)).all():
            return packed(red, green, blue)
        pixels = pixels[..., 0]
    if path.suffix.lower() in LOSSY:
        return np.where(pixels > 127, 255, 0).astype(np.uint8)
    if pixels.max(initial=0) > NO_LABEL:
        raise ValueError('numbers above 255')
    return pixels.astype(np.uint8)


def is_plain(path: Path) -> bool:
    """Whether mmseg reads the numbers of a label map as they are."""
    with Image.open(path) as file:
        return file.mode in ('L', 'P')
