"""Every task is read from its official layouts; the first invalid file is named."""

import numpy as np
import pytest

from tests.helpers import sequences
from tests.helpers.refusals import assert_lines, refusal
from tests.helpers.sequences import WRITERS, cifar_pixels, expect_cifar


def tokens(data, index):
    inputs = data[index]['inputs']
    return tuple(part.tolist() for part in inputs) if data.PAIRS else inputs.tolist()


def labels(data):
    return [data[index]['data_samples'].gt_label for index in range(len(data))]


def in_bytes(text):
    return [value + 1 for value in (text if isinstance(text, bytes) else text.encode())]


def test_listops(build, tmp_path):
    root = sequences.write_listops(tmp_path / 'listops-1000')
    data = build('ListOps', root)
    assert tokens(data, 0) == [12, 3, 14, 10, 5]  # [MAX 2 [SM 9 4
    assert tokens(build('ListOps', root, brackets=True), 0) == [12, 3, 14, 10, 5, 15, 15]
    assert labels(data) == [3, 7]
    (root / 'basic_train.tsv').write_text(sequences.LISTOPS.replace('\r', ''))
    assert tokens(build('ListOps', root), 0) == tokens(data, 0)


def test_text(build, tmp_path):
    root = sequences.write_text(tmp_path / 'aclImdb')
    data = build('ByteText', root)
    dev = build('ByteText', root, 'dev')
    assert [tokens(data, index) for index in (0, 1)] == [
        in_bytes('train 2 é'),
        in_bytes('train 10 é'),
    ]
    assert labels(data) == [0, 0, 1, 1]
    assert tokens(dev, 0) == tokens(build('ByteText', root, 'test'), 0) == in_bytes('test 2 é')
    assert_lines(dev.notes, (root, 'test split', ''))
    assert tokens(build('ByteText', root, max_length=3), 0) == in_bytes('tra')


def test_retrieval(build, tmp_path):
    """By default the characters of a literal b'…' are the text, as in Skyformer."""
    root = sequences.write_retrieval(tmp_path / 'tsv_data')
    plain = build('Retrieval', root, 'dev')
    assert tokens(plain, 0) == (in_bytes(r"b'it\'s\n\xc3'"), in_bytes('b"two"'))
    data = build('Retrieval', root, 'dev', literals=True)
    first = in_bytes(b"it's\n\xc3")
    assert [tokens(data, index) for index in (0, 1)] == [
        (first, in_bytes('two')),
        (first, in_bytes('plain text é')),
    ]
    assert labels(data) == [1, 0]
    assert len(data.samples.ends) == 3  # the document of both pairs is stored once


@pytest.mark.parametrize('table', ['text', 'array'])
def test_pathfinder(build, tmp_path, table):
    root = sequences.write_pathfinder(tmp_path / 'pathfinder32', table=table)
    splits = [build('Pathfinder', root, split) for split in ('train', 'dev', 'test')]
    assert [len(data) for data in splits] == [16, 2, 2]
    numbers = [tokens(data, index)[0] for data in splits for index in range(len(data))]
    assert sorted(numbers) == list(range(20))
    assert [label for data in splits for label in labels(data)] == [
        number % 2 for number in numbers
    ]
    assert tokens(splits[0], 3) == [numbers[3]] * 1024


def test_cifar(build, tmp_path, monkeypatch):
    root = sequences.write_cifar(tmp_path / 'cifar')
    expect_cifar(monkeypatch, root)
    train, dev, test = (build('GreyCIFAR', root, split) for split in ('train', 'dev', 'test'))
    assert labels(train) + labels(dev) == [*range(10)] * 5
    assert len(dev) == 5
    red, green, blue = cifar_pixels(10)[4].reshape(3, 1024) / 255
    grey = 0.2989 * red + 0.587 * green + 0.114 * blue
    assert tokens(test, 4) == np.floor(255.5 * grey).tolist()
    assert tokens(dev, 0) == tokens(test, 5)  # the last half of the last batch


def test_cifar_is_in_the_folder_that_torchvision_reads(build, tmp_path):
    root = sequences.write_cifar(tmp_path / 'cifar')
    message = refusal(build, 'GreyCIFAR', root)
    assert_lines([message], (root, 'cifar-10-batches-py', 'got cifar'))


LEVEL = 'curv_contour_length_14'
HEAD = 'Source\tTarget\n'

BROKEN = {
    'missing split': ('ListOps', 'basic_train.tsv', None, 'no such file'),
    'columns': ('ListOps', 'basic_train.tsv', f'{HEAD}1\t1\n1\n', 'line 3: expected 2 columns'),
    'token': ('ListOps', 'basic_train.tsv', f'{HEAD}[MIN 1 [AVG ]\t1\n', 'got [AVG'),
    'target': ('ListOps', 'basic_train.tsv', f'{HEAD}1\tx\n', 'line 2: expected tokens'),
    'no sample': ('ListOps', 'basic_train.tsv', HEAD, 'at least one sample'),
    'label': ('Retrieval', 'new_aan_pairs.train.tsv', '2\tA\tB\tone\ttwo\n', 'got 2'),
    'missing image': ('Pathfinder', f'{LEVEL}/imgs/0/sample_3.png', None, 'no such file'),
    'damaged batch': ('GreyCIFAR', 'data_batch_3', '', 'corrupted'),
    'no batch': ('GreyCIFAR', 'data_batch_3', None, 'no such file'),
}
"""Case -> data set, damaged file, its content or None for no file, part of the message."""


@pytest.mark.parametrize('case', BROKEN)
def test_invalid_files_are_named(build, tmp_path, monkeypatch, case):
    name, file, content, expected = BROKEN[case]
    root = WRITERS[name](tmp_path / 'data')
    if name == 'GreyCIFAR':
        expect_cifar(monkeypatch, root)
    if content is None:
        (root / file).unlink()
    else:
        (root / file).write_text(content)
    assert expected in refusal(build, name, root)


def test_an_incomplete_literal_is_refused(build, tmp_path):
    root = sequences.write_retrieval(tmp_path / 'data')
    (root / 'new_aan_pairs.train.tsv').write_text("1.0\tA\tB\tb'it\ttwo\n")
    assert len(build('Retrieval', root)) == 1
    assert "line 1: expected a complete literal b'…'" in refusal(
        build, 'Retrieval', root, literals=True
    )


def test_empty_images_are_left_out(build, tmp_path):
    root = sequences.write_pathfinder(tmp_path / 'pathfinder32')
    number = tokens(build('Pathfinder', root), 0)[0]
    (root / LEVEL / f'imgs/0/sample_{number}.png').write_bytes(b'')
    assert len(build('Pathfinder', root)) == 15


def test_split_and_folder_are_checked(build, tmp_path):
    message = refusal(build, 'ListOps', tmp_path, 'val')
    assert_lines([message], ('split: ', 'train, dev, test', 'got val'))
    message = refusal(build, 'ListOps', tmp_path / 'none')
    assert_lines([message], (tmp_path / 'none', 'ListOps', 'got no such folder'))


@pytest.mark.real_data
@pytest.mark.parametrize(
    ('name', 'folder', 'sizes', 'longest'),
    [
        ('ListOps', 'listops-1000', (200, 50, 50), 1693),
        ('ByteText', 'aclImdb', (600, 300, 300), 4000),
        ('Retrieval', 'tsv_data', (120, 30, 30), 4000),
        ('Pathfinder', 'pathfinder32', (319, 40, 40), 1024),
        ('GreyCIFAR', 'cifar-10-batches-py', (900, 100, 300), 1024),
    ],
)
def test_real_samples(build, real_data, monkeypatch, name, folder, sizes, longest):
    root = real_data / 'lra_mini' / folder
    if name == 'GreyCIFAR':
        expect_cifar(monkeypatch, root)
    splits = [build(name, root, split) for split in ('train', 'dev', 'test')]
    assert tuple(map(len, splits)) == sizes
    lengths = [
        len(part)
        for data in splits
        for index in range(len(data))
        for part in data.samples[index].sequences
    ]
    assert max(lengths) == longest
    assert set(labels(splits[0])) == set(range(len(splits[0].CLASSES)))
