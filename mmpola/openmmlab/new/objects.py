"""Formats of boxes and outlines: COCO, Pascal VOC, YOLO, VIA, labelme, CVAT."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import yaml
from pycocotools import mask as run_lengths

from mmpola.messages import UsageError, counted, listed
from mmpola.openmmlab.new.description import (
    BOXES,
    OUTLINES,
    SPLIT_OF,
    Folder,
    Found,
    Instance,
    Sample,
    lines_of,
    measured,
    ordered,
    split_of,
)

Json = dict[str, Any]


def read_coco(folder: Folder, contents: dict[str, Json]) -> Found | None:
    """Read files with images, annotations and categories."""
    files = {path: one for path, one in contents.items() if is_coco(one)}
    if any('instances_' in path for path in files):  # beside captions, keypoints and stuff
        files = {path: one for path, one in files.items() if 'instances_' in path}
    if not files:
        return None
    found = Found("COCO's format", _files_text(files), BOXES, [])
    absent = []
    for path, content in files.items():
        names = {category['id']: str(category['name']) for category in content['categories']}
        found.classes += [name for name in names.values() if name not in found.classes]
        split = split_of(path) or split_of(f'{Path(path).stem}/file')
        samples: dict[Any, Sample] = {}
        prefixes: set[str] = set()
        is_direct = True
        for image in content['images']:
            own = folder.image_named(image['file_name'], path)
            if own is None:
                absent.append(image['file_name'])
                continue
            is_direct = is_direct and own.endswith(image['file_name'])
            prefixes.add(own.removesuffix(image['file_name']))
            sample = Sample(folder.root / own, split or (split_of(own) if len(files) == 1 else ''))
            sample.size = (image.get('width') or 0, image.get('height') or 0)
            samples[image['id']] = sample
        for entry in content['annotations']:
            if entry['image_id'] not in samples or len(entry.get('bbox') or ()) != 4:
                continue
            name = names.get(entry['category_id'])
            if name is not None:
                outline = entry.get('segmentation') or None
                is_crowd = bool(entry.get('iscrowd'))
                x, y, width, height = map(float, entry['bbox'])
                samples[entry['image_id']].objects.append(
                    Instance(name, (x, y, width, height), outline, is_crowd)
                )
        found.samples += samples.values()
        if split and len(prefixes) == 1 and is_direct and not absent:
            found.files[split] = (folder.root / path, folder.root / prefixes.pop())
    if len(found.files) < len(files):
        found.files.clear()
    return _completed(found, folder, absent)


def is_coco(content: Json) -> bool:
    """Whether the content of a file is in COCO's format, with boxes."""
    annotations = content.get('annotations')
    is_whole = all(isinstance(content.get(key), list) for key in ('images', 'categories'))
    return is_whole and isinstance(annotations, list) and any('bbox' in one for one in annotations)


def read_voc(folder: Folder, roots: dict[str, ElementTree.Element]) -> Found | None:
    """Read an <annotation> for each image."""
    files = {path: root for path, root in roots.items() if root.tag == 'annotation'}
    if not files:
        return None
    found = Found("Pascal VOC's format", _files_text(files), BOXES, [])
    lists = folder.lists('Main')
    absent = []
    for path, root in files.items():
        stem = Path(path).stem
        own = folder.image_named(stem, path) or folder.image_named(
            root.findtext('filename') or '', path
        )
        if own is None:
            absent.append(f'{stem} ({root.findtext("filename")})')
            continue
        sample = Sample(folder.root / own, lists.get(Path(own).stem.casefold(), ''))
        sample.split = sample.split or ('' if lists else split_of(own) or split_of(path))
        for thing in root.iter('object'):
            box = thing.find('bndbox')
            name = (thing.findtext('name') or '').strip()
            if box is None or not name:
                continue
            left, top, right, bottom = (
                float(box.findtext(key) or 'nan') for key in ('xmin', 'ymin', 'xmax', 'ymax')
            )
            is_difficult = (thing.findtext('difficult') or '0').strip() == '1'
            # As mmdet's XMLDataset: VOC counts pixels from 1.
            corner = (left - 1, top - 1, right - left, bottom - top)
            sample.objects.append(Instance(name, corner, None, is_difficult))
        found.samples.append(sample)
    if lists:
        unlisted = [sample for sample in found.samples if not sample.split]
        if unlisted:
            found.notes.append(f'left out: {counted(len(unlisted), "image")} that no list names')
        found.samples = [sample for sample in found.samples if sample.split]
        found.evidence += f', and lists ({", ".join(sorted(set(lists.values())))})'
    return _completed(found, folder, absent)


def read_yolo(folder: Folder) -> Found | None:
    """Read text files of lines CLASS X Y WIDTH HEIGHT or CLASS X1 Y1 X2 Y2 …, in shares."""
    rows: dict[str, list[list[float]]] = {}  # image -> rows
    is_lists = {'classes.txt', 'labels.txt', 'train.txt', 'val.txt', 'test.txt'}
    texts = [
        path for path in folder.others['.txt'] if os.path.basename(path).lower() not in is_lists
    ]
    absent = []
    for path in texts:
        numbers = rows_of_numbers(folder.root / path)
        own = folder.image_named(Path(path).stem, path)
        if numbers is not None and own is not None:
            rows[own] = numbers
        elif numbers:
            absent.append(path)
    if not any(rows.values()):
        return None
    file = folder.named('data.yaml', 'dataset.yaml') or next(
        (folder.root / path for path in folder.others['.yaml'] + folder.others['.yml']), None
    )
    classes = yolo_names(file, folder)
    evidence = f'{counted(len(rows), "text file")} of numbers, such as {texts[0]}'
    found = Found("YOLO's format", evidence, BOXES, [])
    if classes:
        evidence_of_names = file.name if file else 'a list of names'
        found.evidence += f'; names in {evidence_of_names}'
    number = max(int(row[0]) for one in rows.values() for row in one) + 1
    if 0 < len(classes) < number:
        text = f'{len(classes)} names for the classes 0 … {number - 1}'
        found.notes.append(f'{text}: those without a name are called by their number')
    classes += [f'class_{label}' for label in range(len(classes), number)]
    found.classes = classes
    lists = folder.lists()
    for own in folder.images:
        split = lists.get(Path(own).stem.casefold(), '') or split_of(own)
        found.samples.append(Sample(folder.root / own, split))
    empty = sum(own not in rows for own in folder.images)
    if empty:
        found.notes.append(
            f'{counted(empty, "image")} without a text file: taken as images without objects'
        )
    _note_absent(found, absent, 'text files')
    found.samples = measured(found.samples, found.notes)
    for sample in found.samples:
        width, height = sample.size
        for row in rows.get(os.path.relpath(sample.image, folder.root), ()):
            points = np.array(row[1:]) * np.resize([width, height], len(row) - 1)
            name = classes[int(row[0])]
            if len(row) < 7:
                x, y, w, h = points[:4]
                sample.objects.append(Instance(name, (x - w / 2, y - h / 2, w, h)))
            else:
                sample.objects.append(outlined(name, points.tolist()))
    return _completed(found, folder, [])


def rows_of_numbers(path: Path) -> list[list[float]] | None:
    """Return the rows of a text file of YOLO, [] for an empty one; None if it is none."""
    rows = []
    for line in lines_of(path):
        try:
            row = [float(word) for word in line.split()]
        except ValueError:
            return None
        is_box = len(row) in (5, 6)
        is_outline = len(row) >= 7 and len(row) % 2 == 1
        if not (is_box or is_outline) or row[0] != int(row[0]) or row[0] < 0:
            return None
        rows.append(row)
    return rows


def yolo_names(file: Path | None, folder: Folder) -> list[str]:
    """Return the names of the classes in data.yaml, or else in classes.txt; [] without them."""
    if file is not None:
        try:
            names = (yaml.safe_load(file.read_text()) or {}).get('names') or []
        except (yaml.YAMLError, AttributeError) as error:
            raise UsageError(f'{file}: expected YAML with names, got {error!r:.80}') from error
        if isinstance(names, dict):
            names = [names[key] for key in sorted(names)]
        return [str(name) for name in names]
    text = folder.named('classes.txt', 'labels.txt', 'obj.names')
    return lines_of(text) if text else []


def read_via(folder: Folder, contents: dict[str, Json]) -> Found | None:
    """Read projects and exports of VIA 1 and 2: regions with attributes."""
    files = {path: one for path, one in contents.items() if via_images(one)}
    if not files:
        return None
    found = Found("VIA's format", _files_text(files), BOXES, [])
    absent = []
    left_out = 0
    for path, content in files.items():
        attribute = via_attribute(via_images(content))
        for entry in via_images(content):
            own = folder.image_named(entry['filename'], path)
            if own is None:
                absent.append(entry['filename'])
                continue
            sample = Sample(folder.root / own, split_of(own))
            for region in via_regions(entry):
                name = region['region_attributes'].get(attribute)
                if isinstance(name, dict):  # of checkboxes
                    name = next((key for key, value in name.items() if value), None)
                thing = via_instance(str(name or attribute or 'object'), region['shape_attributes'])
                if thing is None or (attribute and not name):
                    left_out += 1
                else:
                    sample.objects.append(thing)
            found.samples.append(sample)
    if left_out:
        found.notes.append(
            f'left out: {counted(left_out, "region")} without a class, or points and lines'
        )
    return _completed(found, folder, absent)


def via_images(content: Json) -> list[Json]:
    """Return the entries of images in a file of VIA; [] if it is none."""
    entries = content.get('_via_img_metadata', content)
    entries = list(entries.values()) if isinstance(entries, dict) else []
    is_via = all(
        isinstance(one, dict) and 'regions' in one and 'filename' in one for one in entries
    )
    return entries if is_via else []


def via_regions(entry: Json) -> list[Json]:
    """Return the regions of an image: VIA 1 numbers them in a dict."""
    regions = entry['regions']
    return list(regions.values()) if isinstance(regions, dict) else list(regions)


def via_attribute(entries: list[Json]) -> str:
    """Return the attribute that most regions have; '' if they have none."""
    counts: Counter[str] = Counter()
    for entry in entries:
        for region in via_regions(entry):
            counts.update(key for key, value in region['region_attributes'].items() if value)
    return counts.most_common(1)[0][0] if counts else ''


def via_instance(name: str, shape: Json) -> Instance | None:
    """Return the object of a shape of VIA; None for points and lines."""
    if shape['name'] == 'rect':
        return Instance(name, (shape['x'], shape['y'], shape['width'], shape['height']))
    if shape['name'] in ('circle', 'ellipse'):
        across = float(shape['r'] if shape['name'] == 'circle' else shape['rx'])
        down = float(shape['r'] if shape['name'] == 'circle' else shape['ry'])
        return outlined(name, ellipse(shape['cx'], shape['cy'], across, down))
    if shape['name'] != 'polygon':
        return None
    points = zip(shape['all_points_x'], shape['all_points_y'], strict=True)
    return outlined(name, [value for point in points for value in point])


def read_labelme(folder: Folder, contents: dict[str, Json]) -> Found | None:
    """Read a file of labelme for each image."""
    files = {path: one for path, one in contents.items() if isinstance(one.get('shapes'), list)}
    if not files:
        return None
    found = Found("labelme's format", _files_text(files), BOXES, [])
    lists = folder.lists()
    absent = []
    left_out = 0
    for path, content in files.items():
        own = folder.image_named(content.get('imagePath') or Path(path).stem, path)
        if own is None:
            absent.append(path)
            continue
        sample = Sample(
            folder.root / own, lists.get(Path(own).stem.casefold(), '') or split_of(own)
        )
        for shape in content['shapes']:
            thing = labelme_instance(shape)
            if thing is None:
                left_out += 1
            else:
                sample.objects.append(thing)
        found.samples.append(sample)
    if left_out:
        found.notes.append(f'left out: {counted(left_out, "shape")}: points and lines have no area')
    return _completed(found, folder, absent)


def labelme_instance(shape: Json) -> Instance | None:
    """Return the object of a shape of labelme; None for points and lines."""
    name = str(shape['label'])
    points = shape['points']
    kind = shape.get('shape_type') or 'polygon'
    if kind in ('rectangle', 'mask'):
        (x1, y1), (x2, y2) = points[0], points[-1]
        return Instance(name, (min(x1, x2), min(y1, y2), abs(x2 - x1), abs(y2 - y1)))
    if kind == 'circle':
        (x, y), edge = points
        return outlined(name, ellipse(x, y, math.dist((x, y), edge), math.dist((x, y), edge)))
    if kind != 'polygon' or len(points) < 3:
        return None
    return outlined(name, [value for point in points for value in point])


def read_cvat(folder: Folder, roots: dict[str, ElementTree.Element]) -> Found | None:
    """Read files 'CVAT for images': boxes, polygons and masks of each <image>."""
    files = {path: root for path, root in roots.items() if root.tag == 'annotations'}
    if not files:
        return None
    found = Found("CVAT's format", _files_text(files), BOXES, [])
    absent = []
    left_out = 0
    for path, root in files.items():
        names = [label.findtext('name') or '' for label in root.iter('label')]
        found.classes += [name for name in names if name and name not in found.classes]
        for image in root.iter('image'):
            own = folder.image_named(image.get('name', ''), path)
            if own is None:
                absent.append(image.get('name'))
                continue
            subset = SPLIT_OF.get((image.get('subset') or '').lower(), '')
            sample = Sample(folder.root / own, subset or split_of(own))
            for shape in image:
                thing = cvat_instance(
                    shape, int(image.get('width', 0)), int(image.get('height', 0))
                )
                if thing is not None:
                    sample.objects.append(thing)
                else:
                    left_out += shape.tag != 'tag'
            found.samples.append(sample)
    if left_out:
        found.notes.append(f'left out: {counted(left_out, "shape")}: points and lines have no area')
    return _completed(found, folder, absent)


def cvat_instance(shape: ElementTree.Element, width: int, height: int) -> Instance | None:
    """Return the object of an element of CVAT; None for points, lines and tags."""
    name = shape.get('label', '')
    if shape.tag == 'box':
        left, top, right, bottom = (
            float(shape.get(key, 'nan')) for key in ('xtl', 'ytl', 'xbr', 'ybr')
        )
        return Instance(name, (left, top, right - left, bottom - top))
    if shape.tag == 'polygon':
        return outlined(
            name,
            [
                float(value)
                for point in shape.get('points', '').split(';')
                for value in point.split(',')
            ],
        )
    if shape.tag != 'mask':
        return None
    left, top, across, down = (int(shape.get(key, 0)) for key in ('left', 'top', 'width', 'height'))
    counts = [int(count) for count in shape.get('rle', '').split(',')]
    inside = np.repeat(np.arange(len(counts)) % 2, counts).reshape(down, across)  # row by row
    whole = np.zeros((height, width), np.uint8, order='F')
    whole[top : top + down, left : left + across] = inside
    runs = run_lengths.encode(whole)
    return Instance(
        name,
        (left, top, across, down),
        {'size': [height, width], 'counts': runs['counts'].decode()},
    )


def outlined(name: str, polygon: list[float]) -> Instance:
    """Return the object of a polygon x1, y1, x2, y2, … in pixels."""
    xs = polygon[0::2]
    ys = polygon[1::2]
    box = (min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))
    return Instance(name, box, [polygon])


def ellipse(x: float, y: float, across: float, down: float) -> list[float]:
    """Return an ellipse with these radii as a polygon of 32 points."""
    angles = [2 * math.pi * step / 32 for step in range(32)]
    return [
        value
        for angle in angles
        for value in (x + across * math.cos(angle), y + down * math.sin(angle))
    ]


def json_contents(folder: Folder) -> dict[str, Json]:
    """Return the content of every JSON file that is an object."""
    found = {}
    for path in folder.others['.json']:
        try:
            content = json.loads((folder.root / path).read_bytes())
        except (ValueError, OSError) as error:
            raise UsageError(f'{folder.root / path}: cannot be read as JSON ({error})') from error
        if isinstance(content, dict):
            found[path] = content
    return found


def xml_roots(folder: Folder) -> dict[str, ElementTree.Element]:
    """Return the outermost element of every XML file."""
    found = {}
    for path in folder.others['.xml']:
        try:
            found[path] = ElementTree.parse(folder.root / path).getroot()
        except (ElementTree.ParseError, OSError) as error:
            raise UsageError(f'{folder.root / path}: cannot be read as XML ({error})') from error
    return found


def _files_text(files: dict[str, Any]) -> str:
    return f'{counted(len(files), "file")}: {listed(files, 3)}'


def _completed(found: Found, folder: Folder, absent: list[Any]) -> Found:
    """Add the sizes of images, the classes that occur, and whether there are outlines."""
    _note_absent(found, absent)
    if any(0 in sample.size for sample in found.samples):
        found.files.clear()
        found.samples = measured(found.samples, found.notes)
    found.classes = found.classes or ordered(names_in(found), folder)
    return found


def names_in(found: Found) -> Iterator[str]:
    """Yield the name of the class of each object."""
    for sample in found.samples:
        for one in sample.objects:
            yield one.name


def choose_task(found: Found, wanted: str | None) -> None:
    """Set the task of `found`: outlines if most objects have one.

    Raises:
        UsageError: outlines are wanted, and there are none.
    """
    things = [one for sample in found.samples for one in sample.objects]
    with_outline = sum(one.outline is not None for one in things)
    if wanted == OUTLINES and with_outline == 0:
        raise UsageError(
            f'--task: expected boxes, as {found.kind} has no outlines here, got {wanted}'
        )
    found.task = wanted or (OUTLINES if 2 * with_outline > len(things) else BOXES)


def _note_absent(found: Found, absent: list[Any], what: str = 'annotations') -> None:
    if absent:
        text = f'{len(absent):,} {what} whose image is not there: {listed(absent, 3)}'
        found.notes.append(f'left out: {text}')
