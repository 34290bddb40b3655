"""Photographs under other names get their true boxes; those of the judges are left out."""

import io
import json
import subprocess

import numpy as np
import pytest
from PIL import Image

from tools.dev import everyday_boxes
from tools.dev.everyday_boxes import CLASSES, CROWD, find_crowds, main

DOG = CLASSES.index('dog')
CAT = CLASSES.index('cat')
NAMES = ['000000000139', '000000000285', '000000000632', '000000000724']


def jpeg(width, height):
    """Return a photograph of one colour as a JPEG file."""
    file = io.BytesIO()
    Image.new('RGB', (width, height), (width, height, 0)).save(file, 'JPEG')
    return file.getvalue()


def excerpt(names):
    """Return the files of an excerpt from COCO: a photograph of each half, with a dog in each."""
    files = {}
    for half, name in zip(('train2017', 'val2017'), names, strict=True):
        image = dict(id=7, file_name=f'{name}.jpg', width=30, height=20, license=1)
        dog = dict(id=5, image_id=7, bbox=[1, 2, 3, 4], area=6, iscrowd=1, category_id=18)
        categories = [dict(id=17, name='cat'), dict(id=18, name='dog')]
        content = dict(images=[image], annotations=[dog], categories=categories)
        files[f'annotations/instances_{half}.json'] = json.dumps(content).encode()
        files[f'{half}/{name}.jpg'] = jpeg(30, 20)
    return files


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Write the five repositories; four photographs of COCO, the third without boxes."""
    paths = ''.join(f'/data/val2017/{name}.jpg\n' for name in reversed(NAMES))
    boxes = (
        f'val2017/{NAMES[3]}.jpg 10,20,30,60,{DOG} 0,0,80,40,{CAT}\n'
        f'val2017/{NAMES[1]}.jpg 1,2,3,4,{CAT}\n'
        f'val2017/{NAMES[0]}.jpg 5,6,7,8,{DOG}\n'
    )
    photographs = {f'images/{number}.jpg': jpeg(80 + number, 60) for number in range(5)}
    contents = {
        'PHOTOGRAPHS': {**photographs, 'images/embeddings.pth': b'of another program'},
        'BOXES': {'coco_val.txt': boxes.encode()},
        'NAMES': {'data/val2017.txt': paths.encode()},
        'val': excerpt(['000000000001', NAMES[1]]),
        'test': excerpt(['000000000002', '000000000003']),
    }
    sources = {}
    for name, files in contents.items():
        folder = tmp_path / 'mirror' / f'owner+{name}' / 'repo'
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        git = ['git', '-C', str(folder), '-c', 'user.name=A', '-c', 'user.email=a@b']
        subprocess.run([*git, 'init', '--quiet'], check=True)
        subprocess.run([*git, 'add', '.'], check=True)
        subprocess.run([*git, 'commit', '--quiet', '-m', 'All'], check=True)
        sources[name] = (f'owner/{name}', 'HEAD')
    for name in ('PHOTOGRAPHS', 'BOXES', 'NAMES'):
        monkeypatch.setattr(everyday_boxes, name, sources[name])
    judges = {split: sources[split] for split in ('val', 'test')}
    monkeypatch.setattr(everyday_boxes, 'EXCERPTS', judges)
    return tmp_path / 'mirror'


@pytest.fixture
def collected(mirror, tmp_path):
    """Write the photographs at half their size, as collect_photographs.py names them."""
    listed = subprocess.check_output(
        [
            'git',
            '-C',
            str(mirror / 'owner+PHOTOGRAPHS' / 'repo'),
            'ls-tree',
            '-r',
            'HEAD',
            'images',
        ],
        text=True,
    )
    folder = tmp_path / 'photographs'
    (folder / 'coco').mkdir(parents=True)
    hash_of = {}
    for line in listed.splitlines():
        properties, path = line.split('\t')
        hash_of[path] = properties.split()[2]
    for number in range(5):
        name = hash_of[f'images/{number}.jpg']
        Image.new('RGB', (40, 30)).save(folder / 'coco' / f'{name}.jpg')
    return folder, hash_of


def found(file):
    """Return the boxes of each photograph in a file: class, whether a crowd, box."""
    content = json.loads(file.read_text())
    assert [image['id'] for image in content['images']] == [*range(1, len(content['images']) + 1)]
    names = {category['id']: category['name'] for category in content['categories']}
    boxes = {image['file_name']: [] for image in content['images']}
    file_names = {image['id']: image['file_name'] for image in content['images']}
    for entry in content['annotations']:
        box = (names[entry['category_id']], entry['iscrowd'], entry['bbox'])
        boxes[file_names[entry['image_id']]].append(box)
    return boxes


def test_photographs_get_their_boxes_in_their_size(mirror, collected, capsys):
    folder, hash_of = collected
    main([str(folder), '--mirror', str(mirror)])
    names = [f'{hash_of[f"images/{number}.jpg"]}.jpg' for number in range(5)]
    factor = 40 / 83  # of the collected photograph, to the original one
    sides = [round(side * factor, 1) for side in (10, 20, 30, 60)]
    dog = [sides[0], sides[1], round(sides[2] - sides[0], 1), round(sides[3] - sides[1], 1)]
    assert found(folder / 'train.json') == {
        names[0]: [('dog', 0, [2.5, 3.0, 1.0, 1.0])],
        names[2]: [],
        names[3]: [('dog', 0, dog), ('cat', 0, [0.0, 0.0, 38.6, 19.3])],
    }
    assert capsys.readouterr().out.splitlines()[-1] == (
        'train.json: 3 photographs, 3 boxes, 0 crowds'
    )


def test_the_judges_are_written_as_they_are(mirror, collected):
    folder, _ = collected
    main([str(folder), '--mirror', str(mirror)])
    dog = ('dog', 1, [1, 2, 3, 4])
    assert found(folder / 'val.json') == {
        '000000000001.jpg': [dog],
        f'{NAMES[1]}.jpg': [dog],
    }
    assert (folder / 'val' / f'{NAMES[1]}.jpg').read_bytes() == jpeg(30, 20)
    assert sorted(path.name for path in (folder / 'test').iterdir()) == [
        '000000000002.jpg',
        '000000000003.jpg',
    ]


def test_a_box_around_many_of_its_class_is_a_crowd():
    people = [[10 * number, 0, 10 * number + 8, 20, 0] for number in range(CROWD)]
    around = [0, 0, 10 * CROWD, 20, 0]
    of_another_class = [0, 0, 10 * CROWD, 20, 1]
    boxes = np.array([*people, around, of_another_class])
    assert find_crowds(boxes).tolist() == [False] * CROWD + [True, False]
    assert not find_crowds(boxes[1:]).any()  # one fewer
    outside = boxes.copy()
    outside[0, :4] = [0, 0, 8, 40]  # half of it
    assert not find_crowds(outside).any()
