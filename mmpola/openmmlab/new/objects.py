"""Formats of boxes and outlines: COCO, Pascal VOC, YOLO, VIA, labelme, CVAT.

Each reads a file as `Entry`s; `read_objects` finds their images.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
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


class Entry(NamedTuple):
    """An image in an annotation file.

    Attributes:
        name: its name or path.
        objects: in it; None for each point, line or region without a class.
        split: if the file says it.
        size: width and height, if the file says them.
    """

    name: str
    objects: list[Instance | None]
    split: str = ''
    size: tuple[int, int] = (0, 0)


def read_objects(folder: Folder, kind: str, files: dict[str, list[Entry]], lists: str) -> Found:
    """Return what files of one format say.

    Args:
        folder: of the images.
        kind: the format.
        files: the entries of each file by its path inside the folder.
        lists: a word in the path of lists of splits.
    """
    found = Found(kind, f'{counted(len(files), "file")}: {listed(files, 3)}', BOXES, [])
    split_by_stem = folder.lists(lists)
    absent = []
    left_out = 0
    for path, entries in files.items():
        for entry in entries:
            own = folder.image_named(entry.name, path)
            if own is None:
                absent.append(entry.name)
                continue
            kept = [one for one in entry.objects if one is not None]
            left_out += len(entry.objects) - len(kept)
            split = split_of(path) or split_of(own)
            if split_by_stem:
                split = split_by_stem.get(Path(own).stem.casefold(), '')
            sample = Sample(folder.root / own, entry.split or split, entry.size, kept)
            found.samples.append(sample)
    if absent:
        text = f'{len(absent):,} annotated images that are not there: {listed(absent, 3)}'
        found.notes.append(f'left out: {text}')
    if left_out:
        text = f'{counted(left_out, "shape")} without an area or a class'
        found.notes.append(f'left out: {text}')
    if any(0 in sample.size for sample in found.samples):
        found.samples = measured(found.samples, found.notes)
    names = {one.name for sample in found.samples for one in sample.objects}
    found.classes = ordered(names, folder)
    return found


def read_coco(folder: Folder, contents: dict[str, Json]) -> Found | None:
    """Read files with images, annotations and categories."""
    files = {path: one for path, one in contents.items() if is_coco(one)}
    if any('instances_' in path for path in files):  # beside captions, keypoints and stuff
        files = {path: one for path, one in files.items() if 'instances_' in path}
    if not files:
        return None
    entries = {path: list(coco_entries(path, one)) for path, one in files.items()}
    found = read_objects(folder, "COCO's format", entries, '')
    found.classes = list(
        dict.fromkeys(
            str(category['name']) for one in files.values() for category in one['categories']
        )
    )
    for path in files:
        own = {folder.image_named(entry.name, path): entry.name for entry in entries[path]}
        prefixes = {str(image).removesuffix(name) for image, name in own.items()}
        is_direct = all(str(image).endswith(name) for image, name in own.items())
        if is_direct and len(prefixes) == 1 and entries[path][0].split:
            place = folder.root / prefixes.pop()
            found.files[entries[path][0].split] = (folder.root / path, place)
    if len(found.files) < len(files) or found.notes:
        found.files.clear()
    return found


def is_coco(content: Json) -> bool:
    """Whether the content of a file is in COCO's format, with boxes."""
    parts = [content.get(key) for key in ('images', 'annotations', 'categories')]
    return all(isinstance(part, list) for part in parts) and any(
        'bbox' in one for one in content['annotations']
    )


def coco_entries(path: str, content: Json) -> Iterator[Entry]:
    """Yield the images of a file in COCO's format."""
    names = {category['id']: str(category['name']) for category in content['categories']}
    split = split_of(path) or split_of(f'{Path(path).stem}/file')
    objects: dict[Any, list[Instance | None]] = {image['id']: [] for image in content['images']}
    for one in content['annotations']:
        if one['image_id'] not in objects:
            continue
        thing = None
        if len(one.get('bbox') or ()) == 4 and one['category_id'] in names:
            x, y, width, height = map(float, one['bbox'])
            outline = one.get('segmentation') or None
            name = names[one['category_id']]
            is_crowd = bool(one.get('iscrowd'))
            thing = Instance(name, (x, y, width, height), outline, is_crowd)
        objects[one['image_id']].append(thing)
    for image in content['images']:
        size = (int(image.get('width') or 0), int(image.get('height') or 0))
        yield Entry(image['file_name'], objects[image['id']], split, size)


def read_voc(folder: Folder, roots: dict[str, ElementTree.Element]) -> Found | None:
    """Read an <annotation> for each image."""
    files = {}
    for path, root in roots.items():
        if root.tag != 'annotation':
            continue
        stem = Path(path).stem
        is_named = folder.image_named(stem, path) is not None
        name = stem if is_named else root.findtext('filename') or stem
        files[path] = [Entry(name, [voc_instance(one) for one in root.iter('object')])]
    if not files:
        return None
    return read_objects(folder, "Pascal VOC's format", files, 'Main')


def voc_instance(thing: ElementTree.Element) -> Instance | None:
    """Return the object of an element of Pascal VOC; None without a class or a box."""
    name = (thing.findtext('name') or '').strip()
    bounds = numbers(thing.findtext(f'bndbox/{key}') for key in ('xmin', 'ymin', 'xmax', 'ymax'))
    if not name or bounds is None:
        return None
    left, top, right, bottom = bounds
    is_difficult = (thing.findtext('difficult') or '').strip() == '1'
    # VOC counts pixels from 1; as mmdet's XMLDataset.
    return Instance(name, (left - 1, top - 1, right - left, bottom - top), None, is_difficult)


def read_yolo(folder: Folder) -> Found | None:
    """Read text files of lines CLASS X Y WIDTH HEIGHT or CLASS X1 Y1 X2 Y2 …, in shares."""
    files: dict[str, list[Entry]] = {}
    rows: dict[Path, list[list[float]]] = {}
    for path in folder.others['.txt']:
        own = folder.image_named(Path(path).stem, path)
        one = yolo_rows(folder.root / path) if own is not None else None
        if own is not None and one is not None:
            files[path] = [Entry(own, [])]
            rows[folder.root / own] = one
    if not any(rows.values()):
        return None
    found = read_objects(folder, "YOLO's format", files, '')
    names = yolo_names(folder)
    number = max(int(row[0]) for one in rows.values() for row in one) + 1
    if 0 < len(names) < number:
        found.notes.append(f'{len(names)} names for the classes 0 … {number - 1}')
    found.classes = names + [f'class_{label}' for label in range(len(names), number)]
    for sample in found.samples:
        for row in rows[sample.image]:
            points = (np.array(row[1:]) * np.resize(sample.size, len(row) - 1)).tolist()
            name = found.classes[int(row[0])]
            if len(row) >= 7:
                sample.objects.append(outlined(name, points))
            else:
                x, y, width, height = points[:4]
                box = (x - width / 2, y - height / 2, width, height)
                sample.objects.append(Instance(name, box))
    bare = [path for path in folder.images if folder.root / path not in rows]
    if bare:
        text = f'{counted(len(bare), "image")} without a text file: {listed(bare, 3)}'
        found.notes.append(f'left out: {text}; an empty file says that there are no objects')
    return found


def yolo_rows(path: Path) -> list[list[float]] | None:
    """Return the rows of a text file of YOLO, [] for an empty one; None if it is none."""
    rows = []
    for line in lines_of(path):
        row = numbers(line.split())
        if row is None or len(row) < 5 or row[0] < 0 or row[0] % 1:
            return None
        if len(row) > 6 and len(row) % 2 == 0:
            return None
        rows.append(row)
    return rows


def yolo_names(folder: Folder) -> list[str]:
    """Return the names of the classes in data.yaml, or else in classes.txt; [] without them."""
    for path in folder.others['.yaml'] + folder.others['.yml']:
        try:
            content = yaml.safe_load((folder.root / path).read_text())
        except yaml.YAMLError as error:
            raise UsageError(f'{folder.root / path}: cannot be read as YAML') from error
        names = content.get('names') if isinstance(content, dict) else None
        if isinstance(names, dict):
            names = [names[key] for key in sorted(names)]
        if names:
            return [str(name) for name in names]
    text = folder.named('classes.txt', 'labels.txt', 'obj.names')
    return lines_of(text) if text else []


def read_via(folder: Folder, contents: dict[str, Json]) -> Found | None:
    """Read projects and exports of VIA 1 and 2: regions with attributes."""
    files = {}
    for path, content in contents.items():
        images = via_images(content)
        attribute = via_attribute(images)
        entries = []
        for one in images:
            things = [via_instance(region, attribute) for region in via_regions(one)]
            entries.append(Entry(one['filename'], things))
        if entries:
            files[path] = entries
    return read_objects(folder, "VIA's format", files, '') if files else None


def via_images(content: Json) -> list[Json]:
    """Return the entries of images in a file of VIA; [] if it is none."""
    images = content.get('_via_img_metadata', content)
    entries = list(images.values()) if isinstance(images, dict) else []
    is_via = all(isinstance(one, dict) and {'regions', 'filename'} <= one.keys() for one in entries)
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


def via_instance(region: Json, attribute: str) -> Instance | None:
    """Return the object of a region of VIA; None for points, lines, and those without a class.

    If no region has an attribute, all are of the class 'object'.
    """
    shape = region['shape_attributes']
    name = region['region_attributes'].get(attribute) if attribute else 'object'
    if isinstance(name, dict):  # of checkboxes
        name = next((key for key, value in name.items() if value), None)
    if not name:
        return None
    if shape['name'] == 'rect':
        return Instance(name, (shape['x'], shape['y'], shape['width'], shape['height']))
    if shape['name'] == 'circle':
        return outlined(name, circle(shape['cx'], shape['cy'], shape['r']))
    if shape['name'] != 'polygon':
        return None
    points = zip(shape['all_points_x'], shape['all_points_y'], strict=True)
    return outlined(name, [value for point in points for value in point])


def read_labelme(folder: Folder, contents: dict[str, Json]) -> Found | None:
    """Read a file of labelme for each image."""
    files = {}
    for path, content in contents.items():
        if isinstance(content.get('shapes'), list):
            name = content.get('imagePath') or Path(path).stem
            files[path] = [Entry(name, [labelme_instance(one) for one in content['shapes']])]
    return read_objects(folder, "labelme's format", files, '') if files else None


def labelme_instance(shape: Json) -> Instance | None:
    """Return the object of a shape of labelme; None for points and lines."""
    name = str(shape['label'])
    points = shape['points']
    kind = shape.get('shape_type') or 'polygon'
    if kind in ('rectangle', 'mask'):
        (x1, y1), (x2, y2) = points[0], points[-1]
        return Instance(name, (min(x1, x2), min(y1, y2), abs(x2 - x1), abs(y2 - y1)))
    if kind == 'circle':
        return outlined(name, circle(points[0][0], points[0][1], math.dist(points[0], points[1])))
    if kind != 'polygon' or len(points) < 3:
        return None
    return outlined(name, [value for point in points for value in point])


def read_cvat(folder: Folder, roots: dict[str, ElementTree.Element]) -> Found | None:
    """Read files 'CVAT for images': boxes, polygons and masks of each <image>."""
    files: dict[str, list[Entry]] = {}
    names: list[str] = []
    for path, root in roots.items():
        if root.tag != 'annotations':
            continue
        names += [label.findtext('name') or '' for label in root.iter('label')]
        files[path] = []
        for image in root.iter('image'):
            size = (int(image.get('width', 0)), int(image.get('height', 0)))
            things = [cvat_instance(one, size) for one in image if one.tag != 'tag']
            split = SPLIT_OF.get((image.get('subset') or '').lower(), '')
            files[path].append(Entry(image.get('name', ''), things, split, size))
    if not files:
        return None
    found = read_objects(folder, "CVAT's format", files, '')
    found.classes = list(dict.fromkeys(name for name in names if name)) or found.classes
    return found


def cvat_instance(shape: ElementTree.Element, size: tuple[int, int]) -> Instance | None:
    """Return the object of an element of CVAT in an image of this size; None for points, lines."""
    name = shape.get('label', '')
    if shape.tag == 'polygon':
        values = numbers(shape.get('points', '').replace(';', ',').split(','))
        return outlined(name, values) if values else None
    if shape.tag == 'box':
        bounds = numbers(shape.get(key) for key in ('xtl', 'ytl', 'xbr', 'ybr'))
        if bounds is None:
            return None
        left, top, right, bottom = bounds
        return Instance(name, (left, top, right - left, bottom - top))
    if shape.tag != 'mask':
        return None
    left, top, width, height = (
        int(shape.get(key, 0)) for key in ('left', 'top', 'width', 'height')
    )
    counts = [int(count) for count in shape.get('rle', '').split(',')]
    inside = np.repeat(np.arange(len(counts)) % 2, counts).reshape(height, width)  # row by row
    whole = np.zeros(size[::-1], np.uint8, order='F')
    whole[top : top + height, left : left + width] = inside
    runs = run_lengths.encode(whole)
    outline = {'size': list(size[::-1]), 'counts': runs['counts'].decode()}
    return Instance(name, (left, top, width, height), outline)


def outlined(name: str, polygon: list[float]) -> Instance:
    """Return the object of a polygon x1, y1, x2, y2, … in pixels."""
    xs = polygon[0::2]
    ys = polygon[1::2]
    box = (min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))
    return Instance(name, box, [polygon])


def circle(x: float, y: float, radius: float) -> list[float]:
    """Return a circle as a polygon of 32 points."""
    angles = np.arange(32) * (2 * math.pi / 32)
    points = np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], 1)
    return [float(value) for value in points.ravel()]


def numbers(words: Any) -> list[float] | None:
    """Return words as numbers; None if one is no number."""
    try:
        return [float(word) for word in words]
    except (TypeError, ValueError):
        return None


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


def choose_task(found: Found, wanted: str | None) -> None:
    """Set the task of `found`: outlines if most objects have one.

    Raises:
        UsageError: outlines are wanted, and there are none.
    """
    things = [one for sample in found.samples for one in sample.objects]
    with_outline = sum(one.outline is not None for one in things)
    if wanted == OUTLINES and with_outline == 0:
        rule = f'expected boxes, as {found.kind} has no outlines here'
        raise UsageError(f'--task, --model: {rule}, got {wanted}')
    found.task = wanted or (OUTLINES if 2 * with_outline > len(things) else BOXES)
