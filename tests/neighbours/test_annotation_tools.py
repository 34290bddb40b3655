"""The converters of docs/in_your_own_project.md, on files as labelme, CVAT and VIA write them.

Those that are packages run where their commands are found; the workflow `neighbours.yml` installs
them once a week.
"""

import json
import shutil
import subprocess

import pytest

from tests.helpers.annotation_tools import CLASSES, objects_of, write_cvat, write_labelme, write_via
from tests.helpers.pages import block_with, code_blocks


@pytest.fixture
def convert(root, tmp_path):
    """A function that runs the page's command of a converter and reads the file that it names."""

    def convert(program, written):
        if shutil.which(program) is None:
            pytest.skip(f'{program} is not installed')
        block = block_with(
            code_blocks(root / 'docs' / 'in_your_own_project.md', 'bash'), 'labelme2coco scenes'
        )
        (command,) = [line for line in block.splitlines() if line.startswith(program)]
        assert f'writes data/{written}' in block
        subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=True)
        return json.loads((tmp_path / written).read_text())

    return convert


def boxes_by_file(content):
    """Return (class, box as left, top, right, bottom) of each object, by file."""
    names = {category['id']: category['name'] for category in content['categories']}
    files = {image['id']: image['file_name'] for image in content['images']}
    found = {file: [] for file in files.values()}
    for entry in content['annotations']:
        left, top, width, height = entry['bbox']
        box = (left, top, left + width, top + height)
        found[files[entry['image_id']]].append((names[entry['category_id']], box))
    return found


def assert_right(content, shapes, prefix):
    """Compare the objects of a converted file with what was written, and count its outlines."""
    assert [category['name'] for category in content['categories']] == list(CLASSES)
    found = boxes_by_file(content)
    outlines = 0
    for file, _, objects in objects_of(shapes / 'coco'):
        boxes = found.pop(prefix + file.name)
        outlines += len(objects) // 2
        assert len(boxes) == len(objects)
        for (name, box), (expected, corners) in zip(sorted(boxes), sorted(objects), strict=True):
            assert name == expected
            assert box == pytest.approx(corners, abs=1)
    assert not found
    assert sum(bool(entry['segmentation']) for entry in content['annotations']) == outlines
    assert not any(entry['iscrowd'] for entry in content['annotations'])


def test_labelme2coco(convert, shapes, tmp_path):
    write_labelme(shapes / 'coco', tmp_path / 'scenes')
    assert_right(convert('labelme2coco', 'dataset.json'), shapes, 'scenes/')


def test_datumaro(convert, shapes, tmp_path):
    write_cvat(shapes / 'coco', tmp_path / 'cvat')
    content = convert('datum', 'cvat_coco/annotations/instances_annotations.json')
    assert_right(content, shapes, '')


@pytest.mark.parametrize('version', [1, 2])
def test_via_to_coco(version, root, shapes, tmp_path, monkeypatch, capsys):
    folder = tmp_path / 'data' / 'bottles'
    write_via(shapes / 'coco', folder, version)
    monkeypatch.chdir(tmp_path)
    blocks = code_blocks(root / 'docs' / 'in_your_own_project.md')
    exec(block_with(blocks, '# via_to_coco.py'), {})
    left_out, counts = capsys.readouterr().out.splitlines()
    assert left_out.endswith('.jpg: left out a region without a class')
    content = json.loads((folder / 'coco.json').read_text())
    assert counts == f'{len(content["annotations"])} annotations of {", ".join(CLASSES)}'
    for entry in content['annotations']:
        _, _, width, height = entry['bbox']
        assert entry['area'] == pytest.approx(width * height, abs=width + height)
        assert len(entry['segmentation'][0]) == 8
    assert {key for image in content['images'] for key in image} >= {'width', 'height'}
    found = boxes_by_file(content)
    for file, _, objects in objects_of(shapes / 'coco'):
        assert sorted(found.pop(file.name)) == sorted(objects)
    assert not found
