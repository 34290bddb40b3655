"""The data of a project of one's own: boxes, label maps, four bands, Pascal VOC's format."""

import json
import shutil

import cv2
import numpy as np

BCCD = {'circle': 'RBC', 'square': 'WBC', 'triangle': 'Platelets'}
"""Generated class -> its name in the data set of `my_boxes.py`."""

POINT = '<object><name>RBC</name>{box}</object>'.format(
    box='<bndbox><xmin>60</xmin><ymin>30</ymin><xmax>60</xmax><ymax>30</ymax></bndbox>'
)
"""A box without extent, as BCCD has one in each of two splits."""


def write_data(data, shapes):
    """Write what the recipes of docs/in_your_own_project.md read, from generated scenes."""
    data.mkdir()
    (data / 'boxes').symlink_to(shapes / 'coco')
    (data / 'labels').mkdir()
    (data / 'labels' / 'images').symlink_to(shapes / 'ade' / 'images')
    for source in (shapes / 'ade' / 'annotations').glob('*/*.png'):
        target = data / 'labels' / 'annotations' / source.parent.name / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(target), np.minimum(cv2.imread(str(source), cv2.IMREAD_UNCHANGED), 2))
    write_bands(data)
    for split, source in (('train', 'train'), ('val', 'val'), ('test', 'val')):
        write_voc(shapes / 'coco', source, data / 'voc', split)
        write_voc(shapes / 'coco', source, data / 'bccd', split, BCCD, POINT)


def write_bands(data):
    """Write the images of the label maps with a fourth band."""
    (data / 'bands').mkdir()
    (data / 'bands' / 'annotations').symlink_to(data / 'labels' / 'annotations')
    for source in (data / 'labels' / 'images').glob('*/*.jpg'):
        target = data / 'bands' / 'images' / source.parent.name / f'{source.stem}.png'
        target.parent.mkdir(parents=True, exist_ok=True)
        pixels = cv2.imread(str(source))
        cv2.imwrite(str(target), np.dstack([pixels, 255 - pixels[..., :1]]))


def write_voc(coco, source, voc, split, renamed=None, added=''):
    """Write a split of boxes in Pascal VOC's format, with other names and an added object."""
    for name in ('Annotations', 'JPEGImages', 'ImageSets/Main'):
        (voc / name).mkdir(parents=True, exist_ok=True)
    content = json.loads((coco / f'annotations/instances_{source}2017.json').read_text())
    names = {category['id']: category['name'] for category in content['categories']}
    for key, name in names.items():
        names[key] = (renamed or {}).get(name, name)
    listed = []
    for image in content['images']:
        name = f'{split}_{image["id"]}'
        listed.append(name)
        shutil.copy(coco / f'{source}2017' / image['file_name'], voc / f'JPEGImages/{name}.jpg')
        objects = added
        for entry in content['annotations']:
            if entry['image_id'] == image['id']:
                left, top, width, height = entry['bbox']
                objects += (
                    f'<object><name>{names[entry["category_id"]]}</name><bndbox>'
                    f'<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>'
                    f'<xmax>{left + width + 1}</xmax><ymax>{top + height + 1}</ymax>'
                    '</bndbox></object>'
                )
        size = f'<size><width>{image["width"]}</width><height>{image["height"]}</height></size>'
        (voc / f'Annotations/{name}.xml').write_text(f'<a>{size}{objects}</a>')
    (voc / f'ImageSets/Main/{split}.txt').write_text('\n'.join(listed))
