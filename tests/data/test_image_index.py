"""Every layout gives the same images and labels; problems are named."""

import os
import tarfile

import pytest

from mmpola.data.image_index import IMAGENET, build_index, class_names


def fill(folder, classes):
    """Write files of each class; the content of a file is its path."""
    for name, files in classes.items():
        (folder / name).mkdir(parents=True)
        for file in files:
            (folder / name / file).parent.mkdir(exist_ok=True)
            (folder / name / file).write_text(f'{name}/{file}')
    return folder


@pytest.fixture
def tree(tmp_path):
    files = {'10': ['b.JPEG', 'deep/c.png'], '2': ['a.jpg', '.a.jpg', 'notes.txt']}
    return fill(tmp_path / 'tree', files)


def listed(index):
    """(class, content) of every image."""
    return [(index.classes[index.labels[i]], index.read(i).decode()) for i in range(len(index))]


EXPECTED = [('2', '2/a.jpg'), ('10', '10/b.JPEG'), ('10', '10/deep/c.png')]


def test_folders_are_classes_in_natural_order(tree):
    index = build_index(str(tree))
    assert index.classes == ('2', '10')
    assert listed(index) == EXPECTED
    assert [index.name(i) for i in range(3)] == [str(tree / path) for _, path in EXPECTED]


def test_links_to_folders_and_images_are_followed(tree, tmp_path):
    linked = tmp_path / 'linked'
    (linked / '10').mkdir(parents=True)
    (linked / '2').symlink_to(tree / '2')
    for name in ('b.JPEG', 'deep'):
        (linked / '10' / name).symlink_to(tree / '10' / name)
    assert listed(build_index(str(linked))) == EXPECTED


@pytest.mark.parametrize(
    ('link', 'target', 'linked', 'first'),
    [
        ('10/up', '..', '10/up/10', '10'),
        ('10/again', 'deep', '10/deep', '10/again'),
        ('2/other', '../10', '10', '2/other'),
        ('20', '10', '20', '10'),
    ],
)
def test_a_folder_that_links_reach_twice_is_refused(link, target, linked, first, tree):
    (tree / link).symlink_to(target)
    with pytest.raises(ValueError) as raised:
        build_index(str(tree))
    assert str(raised.value) == (
        f'{tree}: expected every folder once, got {tree / linked}, which is the same as {tree / first}'
    )


def test_tar_files_give_the_same_images(tree, tmp_path):
    (tree / '10' / 'deep' / 'c.png').rename(tree / '10' / 'c.png')
    with tarfile.open(tmp_path / 'whole.tar', 'w') as tar:
        tar.add(tree, 'train')
    (tmp_path / 'each').mkdir()
    for name in ('10', '2'):
        with tarfile.open(tmp_path / 'each' / f'{name}.tar', 'w') as tar:
            for file in (tree / name).iterdir():
                tar.add(file, file.name)
    with tarfile.open(tmp_path / 'nested.tar', 'w') as tar:
        for name in ('10', '2'):
            tar.add(tmp_path / 'each' / f'{name}.tar', f'{name}.tar')
    for layout, name in (
        ('whole.tar', 'whole.tar/train/2/a.jpg'),
        ('each', 'each/2.tar/a.jpg'),
        ('nested.tar', 'nested.tar/2.tar/a.jpg'),
    ):
        index = build_index(str(tmp_path / layout))
        assert listed(index) == EXPECTED  # the content of a file is its path
        assert index.name(0) == str(tmp_path / name)


def test_labels_follow_the_classes_of_the_other_folder(tree, tmp_path):
    (tmp_path / 'classes.txt').write_text('10\n\n2\n')
    for classes, labels in ((str(tree), [0, 1, 1]), (str(tmp_path / 'classes.txt'), [0, 0, 1])):
        index = build_index(str(tree), classes)
        assert index.labels.tolist() == labels
    assert class_names(str(tmp_path / 'classes.txt')) == ['10', '2']


def test_some_classes_of_imagenet_keep_its_labels(tmp_path):
    for name in ('n02102040', 'n01440764'):
        (tmp_path / 'val' / name).mkdir(parents=True)
        (tmp_path / 'val' / name / 'a.jpg').touch()
    index = build_index(str(tmp_path / 'val'), IMAGENET)
    assert (index.labels.tolist(), len(index.classes)) == ([0, 217], 1000)
    (tmp_path / 'val' / 'dogs').mkdir()
    with pytest.raises(ValueError, match='has classes that imagenet-1k lacks: dogs'):
        build_index(str(tmp_path / 'val'), IMAGENET)


def test_names_that_are_not_utf8_are_read(tmp_path):
    folder = os.fsencode(tmp_path / 'odd' / 'a')
    os.makedirs(folder)
    with open(folder + b'/\xff\xe9.jpg', 'wb') as file:
        file.write(b'bytes')
    assert build_index(str(tmp_path / 'odd')).read(0) == b'bytes'


PROBLEMS = {
    'absent': (None, None, '{root}: no such folder or file'),
    'flat': (
        {'': ['a.jpg']},
        None,
        '{root}: expected {root}/CLASS/IMAGE, got images directly in the folder '
        "(ImageNet's validation images are published unsorted: move each into the folder of its class)",
    ),
    'nothing': ({'': []}, None, '{root}: expected {root}/CLASS/IMAGE, got no class folders'),
    'empty class': (
        {'a': ['x.jpg'], 'b': [], 'c': ['x.txt']},
        None,
        '{root}: class folders without images (.bmp .jpeg .jpg .pgm .png .ppm .tif .tiff .webp): b, c',
    ),
    'other classes': (
        {f'd{i}': ['x.jpg'] for i in range(7)} | {'a': ['x.jpg']},
        {'a': ['x.jpg'], 'b': ['x.jpg']},
        '{root}: lacks classes that {classes} has: b\n'
        '{root}: has classes that {classes} lacks: d0, d1, d2, d3, d4 and 2 more',
    ),
}


@pytest.mark.parametrize('case', PROBLEMS)
def test_problems(case, tmp_path):
    files, others, message = PROBLEMS[case]
    root, classes = tmp_path / 'root', tmp_path / 'others'
    if files is not None:
        fill(root, files)
    if others is not None:
        fill(classes, others)
    names = str(classes) if others else None
    expected = message.format(root=root, classes=classes)
    with pytest.raises(ValueError) as raised:
        build_index(str(root), names)
    assert str(raised.value) == expected


def test_a_class_in_two_places_is_refused(tree):
    with tarfile.open(tree / '2.tar', 'w') as tar:
        tar.add(tree / '2' / 'a.jpg', 'a.jpg')
    with pytest.raises(ValueError) as raised:
        build_index(str(tree))
    assert str(raised.value) == f'{tree}: classes that are both a folder and a tar file: 2'


def test_other_archives_are_refused(tmp_path):
    (tmp_path / 'train.zip').write_text('')
    with pytest.raises(ValueError) as raised:
        build_index(str(tmp_path / 'train.zip'))
    assert str(raised.value) == f'{tmp_path}/train.zip: expected a folder or a .tar file'
