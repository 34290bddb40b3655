"""Photographs as labelme, CVAT and VIA store them, from a generated data set in COCO's format."""

import json
import shutil
from xml.etree import ElementTree

CLASSES = ('square', 'circle', 'triangle')
"""Classes in the order in which the first photograph has them."""


def objects_of(coco):
    """Return (file, size, [(class, box)]) of the training images; the first has every class."""
    content = json.loads((coco / 'annotations/instances_train2017.json').read_text())
    names = {category['id']: category['name'] for category in content['categories']}
    found = []
    for image in content['images']:
        size = (image['width'], image['height'])
        objects = []
        for entry in content['annotations']:
            name = names[entry['category_id']]
            if entry['image_id'] == image['id'] and not entry['iscrowd'] and name in CLASSES:
                left, top, width, height = entry['bbox']
                objects.append((name, (left, top, left + width, top + height)))
        found.append((coco / 'train2017' / image['file_name'], size, objects))
    for number, name in enumerate(CLASSES):
        found[0][2].insert(number, (name, (10 * number, 5, 10 * number + 8, 20)))
    return found


def corners(box):
    """Return the four corners (x, y) of a box."""
    left, top, right, bottom = box
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def write_labelme(coco, folder):
    """Write photographs with a file of labelme 5 beside each: every second object is a polygon."""
    folder.mkdir()
    for file, (width, height), objects in objects_of(coco):
        shutil.copy(file, folder)
        shapes = []
        for number, (name, box) in enumerate(objects):
            shape = {'label': name, 'group_id': None, 'flags': {}, 'shape_type': 'polygon'}
            shape['points'] = corners(box)
            if number % 2 == 0:
                shape.update(shape_type='rectangle', points=[box[2:], box[:2]])  # drawn upwards
            shapes.append(shape)
        content = {'version': '5.4.1', 'flags': {}, 'shapes': shapes, 'imageData': None}
        content.update(imagePath=file.name, imageHeight=height, imageWidth=width)
        (folder / f'{file.stem}.json').write_text(json.dumps(content))


def write_cvat(coco, folder):
    """Write an archive 'CVAT for images 1.1': every second object is a polygon."""
    (folder / 'images').mkdir(parents=True)
    root = ElementTree.Element('annotations')
    ElementTree.SubElement(root, 'version').text = '1.1'
    task = ElementTree.SubElement(ElementTree.SubElement(root, 'meta'), 'task')
    labels = ElementTree.SubElement(task, 'labels')
    for name in CLASSES:
        label = ElementTree.SubElement(labels, 'label')
        ElementTree.SubElement(label, 'name').text = name
        ElementTree.SubElement(label, 'attributes')
    for index, (file, (width, height), objects) in enumerate(objects_of(coco)):
        shutil.copy(file, folder / 'images')
        facts = {'id': str(index), 'name': file.name, 'width': str(width), 'height': str(height)}
        image = ElementTree.SubElement(root, 'image', facts)
        for number, (name, box) in enumerate(objects):
            common = {'label': name, 'occluded': '0', 'source': 'manual', 'z_order': '0'}
            if number % 2 == 0:
                sides = zip(('xtl', 'ytl', 'xbr', 'ybr'), map(str, box), strict=True)
                ElementTree.SubElement(image, 'box', {**common, **dict(sides)})
            else:
                points = ';'.join(f'{x},{y}' for x, y in corners(box))
                ElementTree.SubElement(image, 'polygon', {**common, 'points': points})
    ElementTree.ElementTree(root).write(folder / 'annotations.xml')


def write_via(coco, folder, version):
    """Write photographs and a file of VIA 1 or 2: every second object is a polygon.

    The last photograph has a region without a class.
    """
    folder.mkdir(parents=True)
    entries = {}
    for file, _, objects in objects_of(coco):
        shutil.copy(file, folder)
        regions = []
        for number, (name, box) in enumerate(objects):
            xs, ys = zip(*corners(box), strict=True)
            shape = {'name': 'polygon', 'all_points_x': xs, 'all_points_y': ys}
            if number % 2 == 0:
                left, top, right, bottom = box
                shape = {'name': 'rect', 'x': left, 'y': top}
                shape.update(width=right - left, height=bottom - top)
            regions.append({'shape_attributes': shape, 'region_attributes': {'name': name}})
        entries[f'{file.name}123'] = {'filename': file.name, 'size': 123, 'regions': regions}
    regions.append({'shape_attributes': shape, 'region_attributes': {}})
    content = {'_via_settings': {}, '_via_img_metadata': entries}
    if version == 1:
        content = entries
        for entry in entries.values():
            numbers = map(str, range(len(entry['regions'])))
            entry['regions'] = dict(zip(numbers, entry['regions'], strict=True))
    (folder / 'via_region_data.json').write_text(json.dumps(content))


def write_converted(coco, path, prefix):
    """Write what a converter makes of them: COCO's format, with `prefix` before each file name."""
    images = []
    annotations = []
    for index, (file, (width, height), objects) in enumerate(objects_of(coco)):
        image = {'id': index + 1, 'file_name': prefix + file.name}
        images.append({**image, 'width': width, 'height': height})
        for name, (left, top, right, bottom) in objects:
            sides = [right - left, bottom - top]
            entry = {'id': len(annotations) + 1, 'image_id': index + 1, 'segmentation': []}
            entry.update(category_id=CLASSES.index(name), bbox=[left, top, *sides])
            annotations.append({**entry, 'area': sides[0] * sides[1], 'iscrowd': 0})
    categories = [{'id': number, 'name': name} for number, name in enumerate(CLASSES)]
    content = {'images': images, 'annotations': annotations, 'categories': categories}
    path.write_text(json.dumps(content))
