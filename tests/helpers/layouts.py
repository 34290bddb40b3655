"""Folders of labelled photographs in many layouts, all of them with the same objects.

Photograph n of `NUMBER` has a dog and, if n is even, a cat; `objects_of` says where.
"""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

NUMBER = 10
SIZE = (64, 48)  # width, height
CLASSES = ('dog', 'cat')
COLOURS = {0: (0, 0, 0), 1: (250, 10, 20), 2: (10, 250, 20)}
STEMS = [f'photo{number:02d}' for number in range(NUMBER)]


def objects_of(stem):
    """Return [(class, (x1, y1, x2, y2))] of a photograph."""
    number = STEMS.index(stem)
    found = [('dog', (2 + number, 4, 22 + number, 30))]
    if number % 2 == 0:
        found.append(('cat', (40, 10 + number, 60, 34)))
    return found


def split_of(stem):
    """Return the split of a photograph in layouts that have splits."""
    return 'val' if STEMS.index(stem) >= 7 else 'train'


def write_photograph(path):
    """Write a photograph of noise, with its objects brighter; its name begins with its stem."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stem = path.stem[:7]
    pixels = np.random.default_rng(STEMS.index(stem)).integers(0, 90, (SIZE[1], SIZE[0], 3))
    for name, (x1, y1, x2, y2) in objects_of(stem):
        pixels[y1:y2, x1:x2, CLASSES.index(name)] += 150
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def write_text(path, text):
    """Write a text file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def polygon_of(box):
    """Return the corners of a box as x1, y1, x2, y2, …"""
    x1, y1, x2, y2 = box
    return [x1, y1, x2, y1, x2, y2, x1, y2]


def coco_content(stems, file_name, outline=None):
    """Return the content of a file in COCO's format."""
    images = []
    annotations = []
    for number, stem in enumerate(stems, 1):
        images.append(
            {'id': number, 'file_name': file_name(stem), 'width': SIZE[0], 'height': SIZE[1]}
        )
        for name, box in objects_of(stem):
            x1, y1, x2, y2 = box
            annotation = {'id': len(annotations) + 1, 'image_id': number, 'iscrowd': 0}
            annotation['category_id'] = CLASSES.index(name) + 1
            annotation['bbox'] = [x1, y1, x2 - x1, y2 - y1]
            annotation['area'] = (x2 - x1) * (y2 - y1)
            if outline == 'polygon':
                annotation['segmentation'] = [polygon_of(box)]
            if outline == 'rle':
                pixels = np.zeros(SIZE[::-1], np.uint8)
                pixels[y1:y2, x1:x2] = 1
                flat = np.concatenate([[0], pixels.ravel(order='F'), [2]])
                changes = np.flatnonzero(np.diff(flat))
                counts = np.diff([0, *changes.tolist()]).tolist()
                annotation['segmentation'] = {'size': list(SIZE[::-1]), 'counts': counts}
            annotations.append(annotation)
    categories = [{'id': 0, 'name': 'animals'}]  # Roboflow's, of which there are no objects
    categories += [{'id': number, 'name': name} for number, name in enumerate(CLASSES, 1)]
    return {'images': images, 'annotations': annotations, 'categories': categories}


def coco_splits(folder, outline=None):
    """annotations/instances_SPLIT2017.json, SPLIT2017/PHOTO.jpg"""
    for split in ('train', 'val'):
        stems = [stem for stem in STEMS if split_of(stem) == split]
        for stem in stems:
            write_photograph(folder / f'{split}2017' / f'{stem}.jpg')
        content = coco_content(stems, lambda stem: f'{stem}.jpg', outline)
        write_text(folder / 'annotations' / f'instances_{split}2017.json', json.dumps(content))


def coco_outlines(folder):
    """As coco_splits, with polygons."""
    coco_splits(folder, 'polygon')


def coco_run_lengths(folder):
    """As coco_splits, with run lengths."""
    coco_splits(folder, 'rle')


def coco_one_file(folder):
    """all.json beside images/PHOTO.JPG"""
    for stem in STEMS:
        write_photograph(folder / 'images' / f'{stem}.JPG')
    content = coco_content(STEMS, lambda stem: f'{stem}.jpg')
    write_text(folder / 'all.json', json.dumps(content))


def coco_roboflow(folder):
    """SPLIT/_annotations.coco.json beside SPLIT/PHOTO.rf.HASH.jpg"""
    for split, place in {'train': 'train', 'val': 'valid'}.items():
        stems = [stem for stem in STEMS if split_of(stem) == split]
        for stem in stems:
            write_photograph(folder / place / f'{stem}_jpg.rf.0a1b.jpg')
        content = coco_content(stems, lambda stem: f'{stem}_jpg.rf.0a1b.jpg')
        write_text(folder / place / '_annotations.coco.json', json.dumps(content))


def voc_xml(stem, suffix='.jpg'):
    """Return a photograph's annotation in Pascal VOC's format, which counts pixels from 1."""
    root = ElementTree.Element('annotation')
    ElementTree.SubElement(root, 'filename').text = f'{stem}{suffix}'
    for name, box in objects_of(stem):
        thing = ElementTree.SubElement(root, 'object')
        ElementTree.SubElement(thing, 'name').text = name
        ElementTree.SubElement(thing, 'difficult').text = '0'
        bounds = ElementTree.SubElement(thing, 'bndbox')
        for key, value in zip(('xmin', 'ymin', 'xmax', 'ymax'), box, strict=True):
            ElementTree.SubElement(bounds, key).text = str(value + 1)
    return ElementTree.tostring(root).decode()


def voc_lists(folder):
    """JPEGImages, Annotations and ImageSets/Main"""
    for stem in STEMS:
        write_photograph(folder / 'JPEGImages' / f'{stem}.jpg')
        write_text(folder / 'Annotations' / f'{stem}.xml', voc_xml(stem))
    for split in ('train', 'val'):
        lines = ''.join(f'{stem}\n' for stem in STEMS if split_of(stem) == split)
        write_text(folder / 'ImageSets' / 'Main' / f'{split}.txt', lines)


def voc_beside(folder):
    """PHOTO.xml beside PHOTO.png, without lists, one folder too deep"""
    for stem in STEMS:
        write_photograph(folder / 'animals' / f'{stem}.png')
        write_text(folder / 'animals' / f'{stem}.xml', voc_xml(stem, '.png'))


def yolo_lines(stem, segments=False):
    """Return the lines of a photograph's text file."""
    lines = []
    for name, box in objects_of(stem):
        x1, y1, x2, y2 = box
        values = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]
        if segments:
            values = polygon_of(box)
        shares = [value / SIZE[number % 2] for number, value in enumerate(values)]
        lines.append(' '.join([str(CLASSES.index(name)), *map(str, shares)]))
    return '\n'.join(lines)


def yolo(folder, segments=False):
    """data.yaml, images/SPLIT, labels/SPLIT"""
    for stem in STEMS:
        write_photograph(folder / 'images' / split_of(stem) / f'{stem}.jpg')
        write_text(folder / 'labels' / split_of(stem) / f'{stem}.txt', yolo_lines(stem, segments))
    text = 'path: /content/elsewhere\ntrain: images/train\nval: images/val\nnames: [dog, cat]\n'
    write_text(folder / 'data.yaml', text)


def yolo_segments(folder):
    """As yolo, with polygons"""
    yolo(folder, segments=True)


def yolo_roboflow(folder):
    """data.yaml with names by number, SPLIT/images, SPLIT/labels"""
    for stem in STEMS:
        place = folder / {'train': 'train', 'val': 'valid'}[split_of(stem)]
        write_photograph(place / 'images' / f'{stem}.jpg')
        write_text(place / 'labels' / f'{stem}.txt', yolo_lines(stem))
    text = 'train: ../train/images\nval: ../valid/images\nnc: 2\nnames:\n  0: dog\n  1: cat\n'
    write_text(folder / 'data.yaml', text)


def yolo_beside(folder):
    """PHOTO.txt and classes.txt beside PHOTO.jpg"""
    for stem in STEMS:
        write_photograph(folder / f'{stem}.jpg')
        write_text(folder / f'{stem}.txt', yolo_lines(stem))
    write_text(folder / 'classes.txt', 'dog\ncat\n')


def via_regions(stem):
    """Return the regions of a photograph: the first is a rectangle, the second a polygon."""
    regions = []
    for number, (name, (x1, y1, x2, y2)) in enumerate(objects_of(stem)):
        shape = {'name': 'rect', 'x': x1, 'y': y1, 'width': x2 - x1, 'height': y2 - y1}
        if number > 0:
            shape = {'name': 'polygon', 'all_points_x': [x1, x2, x2, x1]}
            shape['all_points_y'] = [y1, y1, y2, y2]
        regions.append({'shape_attributes': shape, 'region_attributes': {'animal': name}})
    return regions


def via_1(folder):
    """via_region_data.json of VIA 1 in each of train and val"""
    for split in ('train', 'val'):
        content = {}
        for stem in STEMS:
            if split_of(stem) == split:
                write_photograph(folder / split / f'{stem}.jpg')
                regions = dict(enumerate(via_regions(stem)))
                content[f'{stem}.jpg123'] = {'filename': f'{stem}.jpg', 'regions': regions}
        write_text(folder / split / 'via_region_data.json', json.dumps(content))


def via_2(folder):
    """A project of VIA 2 beside the photographs"""
    entries = {}
    for stem in STEMS:
        write_photograph(folder / f'{stem}.jpg')
        entries[f'{stem}.jpg9'] = {'filename': f'{stem}.jpg', 'regions': via_regions(stem)}
    content = {'_via_settings': {}, '_via_img_metadata': entries, '_via_attributes': {}}
    write_text(folder / 'project.json', json.dumps(content))


def labelme(folder):
    """PHOTO.json beside PHOTO.jpg: the first object is a rectangle, the second a polygon"""
    for stem in STEMS:
        write_photograph(folder / f'{stem}.jpg')
        shapes = []
        for number, (name, box) in enumerate(objects_of(stem)):
            x1, y1, x2, y2 = box
            shape = {'label': name, 'shape_type': 'rectangle', 'points': [[x2, y2], [x1, y1]]}
            if number > 0:
                points = [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
                shape = {'label': name, 'shape_type': 'polygon', 'points': points}
            shapes.append(shape)
        content = {'imagePath': f'..\\photos\\{stem}.jpg', 'shapes': shapes}
        write_text(folder / f'{stem}.json', json.dumps(content))


def cvat(folder):
    """annotations.xml beside images/: a box and a polygon, in subsets"""
    root = ElementTree.Element('annotations')
    labels = ElementTree.SubElement(ElementTree.SubElement(root, 'meta'), 'labels')
    for name in CLASSES:
        ElementTree.SubElement(ElementTree.SubElement(labels, 'label'), 'name').text = name
    for stem in STEMS:
        write_photograph(folder / 'images' / f'{stem}.jpg')
        facts = {'name': f'{stem}.jpg', 'width': '64', 'height': '48', 'subset': split_of(stem)}
        image = ElementTree.SubElement(root, 'image', facts)
        for number, (name, box) in enumerate(objects_of(stem)):
            x1, y1, x2, y2 = map(str, box)
            if number == 0:
                sides = {'xtl': x1, 'ytl': y1, 'xbr': x2, 'ybr': y2}
                ElementTree.SubElement(image, 'box', {'label': name, **sides})
            else:
                points = f'{x1},{y1};{x2},{y1};{x2},{y2};{x1},{y2}'
                ElementTree.SubElement(image, 'polygon', {'label': name, 'points': points})
    write_text(folder / 'annotations.xml', ElementTree.tostring(root).decode())


def numbers_of(stem):
    """Return the label map [H, W] of a photograph: 0 ground, 1 dog, 2 cat."""
    pixels = np.zeros(SIZE[::-1], np.uint8)
    for name, (x1, y1, x2, y2) in objects_of(stem):
        pixels[y1:y2, x1:x2] = CLASSES.index(name) + 1
    return pixels


def write_map(path, pixels, palette=None):
    """Write a label map as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    if palette is not None:
        image = image.convert('P')
        image.putdata(pixels.ravel().tolist())
        image.putpalette(palette + [0] * (768 - len(palette)))
    image.save(path)


def maps_numbers(folder):
    """img_dir/SPLIT, ann_dir/SPLIT and classes.txt"""
    for stem in STEMS:
        write_photograph(folder / 'img_dir' / split_of(stem) / f'{stem}.jpg')
        write_map(folder / 'ann_dir' / split_of(stem) / f'{stem}.png', numbers_of(stem))
    write_text(folder / 'classes.txt', 'ground\ndog\ncat\n')


def maps_suffix(folder):
    """PHOTO_mask.png beside PHOTO.jpg, of 0 and 255"""
    for stem in STEMS:
        write_photograph(folder / f'{stem}.jpg')
        write_map(folder / f'{stem}_mask.png', np.uint8(255) * (numbers_of(stem) > 0))


def maps_colours(folder):
    """images, masks of colours, class_dict.csv; some photographs end in .JPG"""
    table = np.array([COLOURS[number] for number in range(3)], np.uint8)
    for number, stem in enumerate(STEMS):
        suffix = '.JPG' if number % 3 else '.jpg'
        write_photograph(folder / 'images' / f'{stem}{suffix}')
        write_map(folder / 'masks' / f'{stem}.png', table[numbers_of(stem)])
    rows = ['name,r,g,b', 'ground,0,0,0', 'dog,250,10,20', 'cat,10,250,20']
    write_text(folder / 'class_dict.csv', '\n'.join(rows))


def maps_palette(folder):
    """train and trainannot, val and valannot, with a palette and 255 at the border of things"""
    for stem in STEMS:
        pixels = numbers_of(stem)
        pixels[0] = 255
        write_photograph(folder / split_of(stem) / f'{stem}.png')
        palette = [value for number in range(3) for value in COLOURS[number]]
        write_map(folder / f'{split_of(stem)}annot' / f'{stem}.png', pixels, palette)


def maps_cityscapes(folder):
    """leftImg8bit/SPLIT/CITY/…, gtFine/SPLIT/CITY/…_labelTrainIds.png"""
    for stem in STEMS:
        city = f'{split_of(stem)}/ulm'
        write_photograph(folder / 'leftImg8bit' / city / f'{stem}_leftImg8bit.png')
        place = folder / 'gtFine' / city
        write_map(place / f'{stem}_gtFine_labelTrainIds.png', numbers_of(stem))
        write_map(place / f'{stem}_gtFine_labelIds.png', numbers_of(stem) + np.uint8(7))
        write_map(place / f'{stem}_gtFine_color.png', numbers_of(stem) * np.uint8(90))


def class_folders(folder):
    """CLASS/PHOTO.jpg, and an empty class"""
    for number, stem in enumerate(STEMS):
        write_photograph(folder / CLASSES[number % 2] / f'{stem}.jpg')
    (folder / 'bird').mkdir()


def class_folders_splits(folder):
    """SPLIT/CLASS/PHOTO.jpg"""
    for number, stem in enumerate(STEMS):
        write_photograph(folder / split_of(stem) / CLASSES[number % 2] / f'{stem}.jpg')


BOXES = (
    *(coco_splits, coco_one_file, coco_roboflow, voc_lists, voc_beside, yolo, yolo_roboflow),
    *(yolo_beside, via_1, via_2, labelme, cvat),
)
"""Layouts of which most objects have only a box."""

OUTLINES = (coco_outlines, coco_run_lengths, yolo_segments)
LABEL_MAPS = (maps_numbers, maps_suffix, maps_colours, maps_palette, maps_cityscapes)
CLASS_FOLDERS = (class_folders, class_folders_splits)
LAYOUTS = (*BOXES, *OUTLINES, *LABEL_MAPS, *CLASS_FOLDERS)


def written(layout, folder):
    """Write a layout into a folder called animals, and return it."""
    place = Path(folder) / 'animals'
    layout(place)
    return place
