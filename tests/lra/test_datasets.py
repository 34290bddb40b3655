"""Every task is read from its official layouts; invalid files are named in one line per rule."""

import pickle
import shutil
from functools import partial

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
    assert tokens(data, 0) == [12, 3, 14, 10, 5, 15, 15]  # [MAX 2 [SM 9 4 ] ]
    assert tokens(build('ListOps', root, brackets=False), 0) == [12, 3, 14, 10, 5]
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
    data = build('Retrieval', sequences.write_retrieval(tmp_path / 'tsv_data'), 'dev')
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
    red, green, blue = cifar_pixels(10)[4].reshape(3, 1024).astype(float)
    assert tokens(test, 4) == np.rint(0.2989 * red + 0.587 * green + 0.114 * blue).tolist()
    assert tokens(dev, 0) == tokens(test, 5)  # the last half of the last batch


def test_cifar_is_in_the_folder_that_torchvision_reads(build, tmp_path):
    root = sequences.write_cifar(tmp_path / 'cifar')
    message = refusal(build, 'GreyCIFAR', root)
    assert_lines([message], (root, 'cifar-10-batches-py', 'got cifar'))


@pytest.mark.parametrize(
    ('name', 'configured', 'here'),
    [
        ('ListOps', 'listops-1000', 'listops'),
        ('Retrieval', 'tsv_data', 'lra_release/lra_release/tsv_data'),
        ('Pathfinder', 'pathfinder32', 'pathfinder/pathfinder32'),
    ],
)
def test_other_names_of_the_folders_are_found(build, tmp_path, name, configured, here):
    WRITERS[name](tmp_path / here)
    assert build(name, tmp_path / configured).root == tmp_path / here


def write(name, content, root):
    path = root / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def cut(name, root):
    path = root / name
    path.write_bytes(path.read_bytes()[:1000])


class Attack:
    def __reduce__(self):
        return print, ('executed',)


LEVEL = 'curv_contour_length_14'
HEAD = 'Source\tTarget\n'

BROKEN = {
    'missing split': (
        'ListOps',
        lambda root: (root / 'basic_train.tsv').unlink(),
        ('basic_train.tsv', 'train split', 'got no such file or folder'),
    ),
    'columns': (
        'ListOps',
        partial(write, 'basic_train.tsv', f'{HEAD}1\t1\n1\n[MIN\t1\t2\n'),
        ('basic_train.tsv', '2 columns', '(2): line 3 (got 1), line 4 (got 3)'),
    ),
    'token': (
        'ListOps',
        partial(write, 'basic_train.tsv', f'{HEAD}[MIN 1 [AVG ]\t1\n'),
        ('basic_train.tsv', '[MIN [MAX [MED [SM ]', '(1): line 2 (got [AVG)'),
    ),
    'target': (
        'ListOps',
        partial(write, 'basic_train.tsv', f'{HEAD}1\tx\n'),
        ('basic_train.tsv', 'digit', "(1): line 2 (got 'x')"),
    ),
    'no tokens': (
        'ListOps',
        partial(write, 'basic_train.tsv', f'{HEAD}()\t1\n'),
        ('basic_train.tsv', 'tokens', '(1): line 2 (got none)'),
    ),
    'header': (
        'ListOps',
        partial(write, 'basic_train.tsv', '1\t1\n2\t2\n'),
        ('basic_train.tsv', 'Source, Target', '(1): line 1 (got 1, 1)'),
    ),
    'no sample': (
        'ListOps',
        partial(write, 'basic_train.tsv', HEAD),
        ('basic_train.tsv', 'at least one sample', 'got none'),
    ),
    'empty review': (
        'ByteText',
        partial(write, 'train/pos/2_9.txt', ''),
        ('train/pos', 'text in every file', '(1): 2_9.txt (empty file)'),
    ),
    'no review': (
        'ByteText',
        lambda root: [path.rename(f'{path}.old') for path in (root / 'train/pos').iterdir()],
        ('train/pos', 'ID_RATING.txt', 'got none'),
    ),
    'no class': (
        'ByteText',
        lambda root: shutil.rmtree(root / 'train/pos'),
        ('train/pos', 'train split', 'got no such file or folder'),
    ),
    'literal': (
        'Retrieval',
        partial(write, 'new_aan_pairs.train.tsv', "1.0\tA\tB\tb'it\ttwo\n"),
        ('new_aan_pairs.train.tsv', 'complete', '(1): line 1'),
    ),
    'label': (
        'Retrieval',
        partial(write, 'new_aan_pairs.train.tsv', '2\tA\tB\tone\ttwo\n'),
        ('new_aan_pairs.train.tsv', '0.0 or 1.0', "(1): line 1 (got '2')"),
    ),
    'empty text': (
        'Retrieval',
        partial(write, 'new_aan_pairs.train.tsv', '1\tA\tB\tone\t\n'),
        ('new_aan_pairs.train.tsv', 'two texts', '(1): line 1 (got an empty one)'),
    ),
    'metadata': (
        'Pathfinder',
        partial(write, f'{LEVEL}/metadata/0.npy', 'imgs/0 sample_0.png 0\n'),
        (f'{LEVEL}/metadata/0.npy', 'at least 4 columns', 'got 3 in row 1'),
    ),
    'metadata calls': (
        'Pathfinder',
        lambda root: np.save(root / LEVEL / 'metadata/0.npy', np.array([Attack()], object)),
        (f'{LEVEL}/metadata/0.npy', 'got ValueError', 'allow_pickle=False'),
    ),
    'damaged batch': (
        'GreyCIFAR',
        partial(cut, 'data_batch_3'),
        ('', 'check sums', '(1): data_batch_3'),
    ),
    'pickle calls': (
        'GreyCIFAR',
        partial(write, 'data_batch_1', pickle.dumps(Attack())),
        ('', 'check sums', '(1): data_batch_1'),
    ),
    'pickle of the classes calls': (
        'GreyCIFAR',
        partial(write, 'batches.meta', pickle.dumps(Attack())),
        ('', 'check sums', '(1): batches.meta'),
    ),
    'no batch': (
        'GreyCIFAR',
        lambda root: [path.unlink() for path in root.glob('data*')],
        ('', 'CIFAR-10', 'data_batch_1, data_batch_2, data_batch_3, data_batch_4, data_batch_5'),
    ),
}


@pytest.mark.parametrize('case', BROKEN)
def test_invalid_files_are_named(build, tmp_path, capsys, monkeypatch, case):
    name, damage, (place, rule, found) = BROKEN[case]
    root = WRITERS[name](tmp_path / 'data')
    if name == 'GreyCIFAR':
        expect_cifar(monkeypatch, root)
    damage(root)
    message = refusal(build, name, root)
    assert_lines([message], (root / place, rule, found))
    assert 'executed' not in capsys.readouterr().out


def test_of_unreadable_images_the_empty_ones_are_left_out(build, tmp_path):
    root = sequences.write_pathfinder(tmp_path / 'pathfinder32')
    images = root / LEVEL / 'imgs/0'
    numbers = [tokens(build('Pathfinder', root), index)[0] for index in range(3)]
    empty, cut_off, absent = (images / f'sample_{number}.png' for number in numbers)
    empty.write_bytes(b'')
    data = build('Pathfinder', root)
    assert len(data) == 15
    assert (
        data.left_out
        == build('Pathfinder', root).left_out
        == [f'{images}: left out, empty files (1): {empty.name}']
    )
    cut_off.write_bytes(cut_off.read_bytes()[:60])
    absent.unlink()
    lines = refusal(build, 'Pathfinder', root).splitlines()
    unreadable, missing = sorted(lines, key=lambda line: 'missing' in line)
    table = root / LEVEL / 'metadata/0.npy'
    row = f'row {numbers[2] + 1} of {table}'
    assert_lines([missing], (images, 'missing', f'(1): {absent.name} ({row})'))
    assert unreadable.startswith(f'{images}: images that cannot be read (1): {cut_off.name} (')


def test_split_and_folder_are_checked(build, tmp_path):
    message = refusal(build, 'ListOps', tmp_path, 'val')
    assert_lines([message], ('split: ', 'train, dev, test', 'got val'))
    message = refusal(build, 'ListOps', tmp_path / 'none')
    assert_lines([message], (tmp_path / 'none', 'ListOps', 'got no such folder'))


@pytest.mark.real_data
@pytest.mark.parametrize(
    ('name', 'folder', 'sizes', 'longest'),
    [
        ('ListOps', 'listops-1000', (200, 50, 50), 1979),
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
