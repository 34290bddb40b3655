"""`mmpola split`: each image is in one split, always the same, and nothing is overwritten."""

import json
import re
import sys
from itertools import chain

import numpy as np
import pytest

from mmpola.messages import OTHER_FORMATS, UsageError
from mmpola.openmmlab.split import divide, split_images
from mmpola.pretraining.class_folders import ClassFolders
from tests.helpers.training import write_images
from tools.split import main

SHARES = {'val': 0.25, 'test': 0.1}


def write_photographs(folder, number, suffix='.jpg'):
    """Write files that nobody opens, beside one of another suffix and a hidden one."""
    folder.mkdir()
    for index in range(number):
        (folder / f'photo_{index}{suffix}').write_text(str(index))
    (folder / 'notes.txt').write_text('not an image')
    (folder / f'.hidden{suffix}').write_text('')
    return folder


def write_coco(path, number):
    images = [{'id': index, 'file_name': f'{index}.jpg'} for index in range(number)]
    annotations = [{'id': 3 * index + 1, 'image_id': index // 2} for index in range(2 * number)]
    categories = [{'id': 1, 'name': 'cat'}]
    content = {'images': images, 'annotations': annotations, 'categories': categories}
    path.write_text(json.dumps({'info': {'year': 2025}, **content}))
    return content


def content_of(folder):
    """Return the content of each file by its path in the folder."""
    files = [path for path in folder.rglob('*') if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_every_name_is_in_one_split():
    names = [f'{number}.jpg' for number in range(40)]
    divided = divide(names, SHARES, 'here')
    assert {split: len(members) for split, members in divided.items()} == {
        'train': 26,
        'val': 10,
        'test': 4,
    }
    assert sorted(chain(*divided.values())) == sorted(names)


def test_names_are_divided_alike_in_every_order_and_with_others_added():
    names = [f'{number}.jpg' for number in range(40)]
    first = divide(names, SHARES, 'here')
    assert divide(reversed(names), SHARES, 'here') == first
    later = divide([*names, 'another.jpg'], SHARES, 'here')
    assert sum(name in later['train'] for name in first['train']) >= len(first['train']) - 2


def test_the_first_names_are_not_all_in_one_split():
    """Photographs are often numbered by class or place."""
    divided = divide([f'{number:03}' for number in range(100)], {'val': 0.2}, 'here')
    assert 4 <= sum(int(name) < 50 for name in divided['val']) <= 16


@pytest.mark.parametrize('number', [0, 1, 2])
def test_too_few_names(number):
    with pytest.raises(UsageError, match=rf'here: .* train, val, test, got {number} in all'):
        divide([str(index) for index in range(number)], SHARES, 'here')


def test_a_coco_file(tmp_path):
    content = write_coco(tmp_path / 'all.json', 20)
    counts = split_images(tmp_path / 'all.json', tmp_path / 'out', SHARES, '.jpg')
    assert counts == {'train': 13, 'val': 5, 'test': 2}
    parts = [json.loads((tmp_path / 'out' / f'{name}.json').read_text()) for name in counts]
    for key in ('images', 'annotations'):
        together = chain(*(part[key] for part in parts))
        assert sorted(together, key=lambda entry: entry['id']) == content[key]
    for part in parts:
        assert part['categories'] == content['categories']
        assert part['info'] == {'year': 2025}
        inside = {image['id'] for image in part['images']}
        assert {entry['image_id'] for entry in part['annotations']} == inside


def test_a_photograph_that_a_coco_file_lists_twice_is_in_one_split(tmp_path):
    content = write_coco(tmp_path / 'all.json', 10)
    content['images'] += [{'id': 100 + index, 'file_name': f'{index}.jpg'} for index in range(10)]
    (tmp_path / 'all.json').write_text(json.dumps(content))
    split_images(tmp_path / 'all.json', tmp_path, {'val': 0.5}, '.jpg')
    parts = [json.loads((tmp_path / f'{name}.json').read_text()) for name in ('train', 'val')]
    files = [{image['file_name'] for image in part['images']} for part in parts]
    assert files[0].isdisjoint(files[1])
    assert [len(part['images']) for part in parts] == [10, 10]


@pytest.mark.parametrize('kind', ['coco', 'list', 'classes'])
def test_versions_of_a_photograph_are_in_one_split(kind, tmp_path, capsys):
    """Roboflow exports augmented copies under the name of the photograph."""
    files = [f'p{index}_jpg.rf.{copy}.jpg' for index in range(10) for copy in ('a7', 'b', 'c')]
    if kind == 'coco':
        source = tmp_path / 'all.json'
        images = [{'id': index, 'file_name': file} for index, file in enumerate(files)]
        source.write_text(json.dumps({'images': images, 'annotations': []}))
    else:
        source = tmp_path / 'all'
        folder = source / 'cat' if kind == 'classes' else source
        folder.mkdir(parents=True)
        for file in files:
            (folder / file).touch()
    counts = split_images(source, tmp_path / 'out', {'val': 0.2}, '.jpg')
    assert counts == {'train': 24, 'val': 6}
    assert capsys.readouterr().out == (
        f'{source}: 10 photographs in 30 versions, which stay together\n'
    )
    if kind == 'classes':
        names = [str(path) for path in content_of(tmp_path / 'out')]
        parts = [[name for name in names if name.startswith(split)] for split in counts]
    else:
        texts = [path.read_text() for path in sorted((tmp_path / 'out').iterdir())]
        parts = [re.findall(r'p\d_jpg\.rf', text) for text in texts]
    photographs = [{re.search(r'p\d', name)[0] for name in part} for part in parts]
    assert sorted(map(len, photographs)) == [2, 8]
    assert photographs[0].isdisjoint(photographs[1])


@pytest.mark.parametrize('text', ['[]', '{"images": []}', '{', '{"images": 3, "annotations": []}'])
def test_a_file_that_is_not_in_cocos_format(text, tmp_path):
    (tmp_path / 'all.json').write_text(text)
    with pytest.raises(UsageError, match=r"all\.json: expected a file in COCO's format") as raised:
        split_images(tmp_path / 'all.json', tmp_path / 'out', SHARES, '.jpg')
    assert str(raised.value).endswith(OTHER_FORMATS)
    assert not (tmp_path / 'out').exists()


def test_class_folders_are_divided_class_by_class(tmp_path):
    source = write_images(tmp_path / 'colours') / 'train'
    whole = ClassFolders(str(source), training=False, transform={'input_size': 32})
    counts = split_images(source, tmp_path / 'out', {'val': 0.25}, '.jpg')
    assert counts == {'train': 18, 'val': 6}
    for name in counts:
        part = ClassFolders(
            str(tmp_path / 'out' / name), training=False, transform={'input_size': 32}
        )
        assert part.metainfo == whole.metainfo
        assert np.bincount(part.labels).tolist() == [counts[name] // 3] * 3
    train = content_of(tmp_path / 'out' / 'train')
    val = content_of(tmp_path / 'out' / 'val')
    assert train.keys().isdisjoint(val)
    assert {**train, **val} == content_of(source)


def test_names_of_a_folder_without_class_folders(tmp_path):
    source = write_photographs(tmp_path / 'photos', 10, '.png')
    counts = split_images(source, tmp_path / 'lists', {'val': 0.2}, '.png')
    assert counts == {'train': 8, 'val': 2}
    lists = [(tmp_path / 'lists' / f'{name}.txt').read_text().split() for name in counts]
    assert sorted(lists[0] + lists[1]) == [f'photo_{index}' for index in range(10)]
    assert len(list(source.iterdir())) == 12


def test_no_photograph_is_left_out_without_a_word(tmp_path, capsys):
    source = write_photographs(tmp_path / 'photos', 6)
    for name in ('a.JPG', 'b.JPG', 'c.jpeg', 'd.png', 'below/e.jpg'):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).touch()
    assert split_images(source, tmp_path / 'lists', {'val': 0.25}, '.jpg') == {'train': 6, 'val': 2}
    lists = [(tmp_path / 'lists' / f'{name}.txt').read_text().split() for name in ('train', 'val')]
    assert sorted(lists[0] + lists[1]) == ['a', 'b', *(f'photo_{index}' for index in range(6))]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f'{source}: left out: 2 files (.jpeg, .png); --suffix lists others',
        f'{source}: left out: 1 image in folders below',
        f'{source}: data sets look for NAME.jpg: rename 2 of the listed files, a.JPG, b.JPG',
    ]


def test_what_cannot_be_divided_is_refused(tmp_path):
    source = write_photographs(tmp_path / 'photos', 4)
    rule = r'photos: expected files NAME\.png \(--suffix\) or class folders, got 4 files \(\.jpg\)'
    with pytest.raises(UsageError, match=rule):
        split_images(source, tmp_path / 'out', SHARES, '.png')
    with pytest.raises(UsageError, match='nothing: expected a folder'):
        split_images(tmp_path / 'nothing', tmp_path / 'out', SHARES, '.png')
    (tmp_path / 'empty' / 'cat').mkdir(parents=True)
    with pytest.raises(UsageError, match='expected images '):
        split_images(tmp_path / 'empty', tmp_path / 'out', SHARES, '.png')
    assert not (tmp_path / 'out').exists()


def test_nothing_is_overwritten(tmp_path):
    """Neither one of several files, nor a folder."""
    out = tmp_path / 'out'
    out.mkdir()
    (out / 'val.txt').write_text('mine')
    with pytest.raises(UsageError, match=r'val\.txt: exists already'):
        split_images(write_photographs(tmp_path / 'photos', 4), out, {'val': 0.2}, '.jpg')
    classes = write_images(tmp_path / 'colours') / 'train'
    with pytest.raises(UsageError, match='out: exists already'):
        split_images(classes, out, {'val': 0.2}, '.jpg')
    with pytest.raises(UsageError, match='expected a folder outside of'):
        split_images(classes, classes / 'parts', {'val': 0.2}, '.jpg')
    assert [path.name for path in out.iterdir()] == ['val.txt']


def test_copies_that_fail_leave_nothing(tmp_path, monkeypatch):
    def fail(source, target):
        raise OSError(28, 'No space left on device')

    classes = write_images(tmp_path / 'colours') / 'train'
    monkeypatch.setattr('shutil.copy2', fail)
    with pytest.raises(OSError, match='No space left'):
        split_images(classes, tmp_path / 'out', {'val': 0.2}, '.jpg')
    assert [path.name for path in tmp_path.iterdir()] == ['colours']


def test_the_command(tmp_path, monkeypatch, capsys):
    source = write_photographs(tmp_path / 'photos', 10)
    words = [str(source), str(tmp_path / 'lists'), '--val', '0.3', '--test', '0.1']
    monkeypatch.setattr(sys, 'argv', ['split.py', *words])
    main()
    assert capsys.readouterr().out == f'{tmp_path}/lists: train 6, val 3, test 1 images\n'


@pytest.mark.parametrize('options', [['--val', '0'], ['--val', '0.8', '--test', '0.2']])
def test_shares_that_leave_nothing(options, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['split.py', str(tmp_path), str(tmp_path / 'out'), *options])
    with pytest.raises(UsageError, match='expected --val above 0'):
        main()
