"""Reading checkpoints: nothing in a file is executed, whichever reader opens it."""

import argparse
import collections
import os
import pathlib
import pickle
import zipfile

import numpy as np
import pytest
import timm
import torch
from mmengine.model import BaseModel

import mmpola.timm  # noqa: F401  # registers the models with timm
from mmpola.apps.publish.convert import convert
from mmpola.backbones import PolaSwin
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.load import load_weights
from mmpola.checkpoint.safe_load import read_checkpoint, stubs_in
from mmpola.engine import training_checkpoint
from mmpola.messages import UsageError
from tests.helpers.processes import interpret
from tests.helpers.training import run, small_config


def save(content, path, **options):
    torch.save(content, path, **options)
    return path


@pytest.mark.parametrize('damage', ['truncated', 'text', 'empty', 'zip'])
def test_a_broken_file_is_named_in_one_line(damage, weights, tmp_path):
    path = save(weights, tmp_path / 'weights.pth')
    if damage == 'truncated':
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == 'zip':
        with zipfile.ZipFile(path, 'w') as archive:
            archive.writestr('readme', 'no weights')
    elif damage == 'text':
        path.write_text('hello')
    else:
        path.write_text('')
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(path)
    assert str(raised.value).startswith(f'{path}: not a checkpoint, or truncated (')
    assert '\n' not in str(raised.value)


def test_flipped_bits_are_found(weights, tmp_path):
    """torch.load itself reads them without a word, and a resumed run would continue with them."""
    path = save(weights, tmp_path / 'weights.pth')
    content = bytearray(path.read_bytes())
    content[content.index(weights['stem.proj.weight'].numpy().tobytes()) + 100] ^= 64
    path.write_bytes(content)
    assert torch.load(path, weights_only=True)
    with pytest.raises(
        CheckpointError, match=rf'^{path}: damaged, the check sum of weights/data/\d+ is wrong'
    ):
        read_checkpoint(path)
    torch.serialization.set_crc32_options(False)
    try:
        save({'a': torch.ones(3)}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert read_checkpoint(path)['a'].sum() == 3  # without check sums there is nothing to compare


class Attack:
    """An object that is pickled as a call, by default of os.system.

    Args:
        arguments: of the call: a tuple, or the only one.
        function: what is called.
        state: perhaps one, for what the call returns.
    """

    def __init__(self, arguments, function=os.system, *state):
        if not isinstance(arguments, tuple):
            arguments = (arguments,)
        self.reduced = (function, arguments, *state)

    def __reduce__(self):
        return self.reduced


@pytest.fixture
def attack(tmp_path):
    """An object that is pickled as a call of os.system, which the test must not run."""
    victim = tmp_path / 'victim'
    attack = Attack(f'touch {victim}')
    yield attack
    assert not victim.exists()
    pickle.loads(pickle.dumps(attack))
    assert victim.exists(), 'the attack itself must work, or the test shows nothing'


@pytest.mark.parametrize('old_format', [False, True])
def test_a_file_that_calls_a_function_is_refused_and_nothing_runs(
    build, weights, attack, tmp_path, old_format
):
    content = {'model': weights, 'config': attack}
    path = tmp_path / 'evil.pth'
    save(content, path, _use_new_zipfile_serialization=not old_format)
    with pytest.raises(CheckpointError) as raised:
        load_weights(build(), path)
    assert str(raised.value).startswith(f'{path}: refused, nothing in it was run (')
    assert 'posix.system' in str(raised.value)


@pytest.mark.parametrize('old_format', [False, True])
def test_other_classes_and_functions_of_a_checkpoint_are_inert(
    build, weights, tmp_path, old_format
):
    """The authors' files hold their yacs config; a class need not be installed, nor is it run."""
    victim = tmp_path / 'victim'
    content = {
        'model': weights,
        'config': argparse.Namespace(size=224),
        'nested': Outer.Inner(a=[1]),
        'called': Attack(f'open({str(victim)!r}, "w")', eval),
        'method': Attack((pathlib.Path(victim), 'touch'), getattr),
        'array': np.arange(6.0).reshape(2, 3).T,
        'scalar': np.float32(0.5),
    }
    path = save(content, tmp_path / 'foreign.pth', _use_new_zipfile_serialization=not old_format)
    load_weights(build(), path)
    found = read_checkpoint(path)
    assert not victim.exists()
    assert vars(found['config'])['size'] == 224
    assert found['nested'] == {'a': [1]}
    assert not found['called']
    assert stubs_in({'part': found['config']}) == {'argparse.Namespace'}
    assert stubs_in({'state_dict': weights, 'meta': [('a', 1)]}) == set()
    assert (
        found['array'].tolist() == content['array'].tolist() and found['array'].dtype == np.float64
    )
    assert found['scalar'] == 0.5 and type(found['scalar']) is float


class Outer:
    class Inner(dict):
        """A dict with a class of its own, like the configs of many projects."""


MULTIARRAY = np._core.multiarray if hasattr(np, '_core') else np.core.multiarray


def array(dtype, shape, data):
    """A pickled array whose parts do not fit together."""
    return Attack((np.ndarray, (0,), b'b'), MULTIARRAY._reconstruct, (1, shape, dtype, False, data))


POINTERS = Attack(('O8', False, True), np.dtype, (3, '|', None, None, None, -1, -1, 0))
HOSTILE = {
    'scalar of a pointer': Attack((POINTERS, b'A' * 8), MULTIARRAY.scalar),
    'array of pointers': array(POINTERS, (1,), b'A' * 8),
    'list that is too short': array(np.dtype('O'), (10**6,), [1]),
    'bytes that are too short': array(np.dtype('f8'), (10**6,), b'A' * 8),
    'shape that overflows': array(np.dtype('f8'), (2**32, 2**32), b''),
    'negative shape': array(np.dtype('f8'), (-1, -1), b'A' * 8),
    'records': array(np.dtype([('a', 'O')]), (1,), b'A' * 8),
    'numpy that reads files': Attack('/etc/hostname', np.fromfile),
    'slots of a path': Attack('/a', pathlib.PosixPath, (None, {'_str': '/b'})),
}
READ_HOSTILE = """
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.safe_load import read_checkpoint
for path in sys.argv[1:]:
    try:
        found = read_checkpoint(path)
        print('inert', repr(found))
    except CheckpointError as error:
        print('refused', error)
"""


def test_a_file_that_cannot_be_read_names_its_classes(tmp_path):
    path = save(
        {'w': torch.ones(1), 'x': collections.deque([1]), 'y': argparse.Namespace()},
        tmp_path / 'file.pth',
    )
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(path)
    assert str(raised.value).startswith(f'{path}: refused, nothing in it was run (')
    assert str(raised.value).endswith(
        'besides tensors it holds argparse.Namespace, collections.deque)'
    )


def test_terminal_escapes_in_names_of_classes_are_printed_as_text(tmp_path):
    path = tmp_path / 'a\x1b[2J'
    path.write_bytes(b'\x80\x02cevil\x1b[2J\nname\n.')
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(path)
    assert str(raised.value).startswith(str(path).replace('\x1b', r'\x1b'))
    assert '\x1b' not in str(raised.value)


@pytest.mark.slow
def test_forged_arrays_and_states_are_refused_or_inert(tmp_path):
    """NumPy itself trusts them, and the process ends in a segmentation fault."""
    paths = []
    for index, content in enumerate(HOSTILE.values()):
        paths.append(tmp_path / f'{index}.pth')
        save(content, paths[-1])
    found = interpret(READ_HOSTILE, *paths)
    assert found.returncode == 0, found.stderr
    answers = [line.split()[0] for line in found.stdout.splitlines()]
    expected = {
        name: 'inert' if name == 'numpy that reads files' else 'refused' for name in HOSTILE
    }
    assert dict(zip(HOSTILE, answers, strict=True)) == expected


def save_pickle(pickled, path):
    """Write a checkpoint file whose pickle is the given bytes."""
    whole = path.with_suffix('.whole')
    torch.save({}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, 'w') as target:
        for entry in source.namelist():
            is_pickle = entry.endswith('data.pkl')
            target.writestr(entry, pickled if is_pickle else source.read(entry))


@pytest.mark.parametrize(
    'name',
    [
        'numpy dtype',
        'numpy ndarray',
        'numpy.core.multiarray scalar',
        'pathlib PurePosixPath',
    ],
)
def test_a_pickle_cannot_change_a_class(name, tmp_path):
    module, _, name = name.partition(' ')
    path = tmp_path / 'file'
    # BUILD of the tuple (None, {'__doc__': 1}), by which a pickle sets attributes one by one
    save_pickle(b'\x80\x02c' + f'{module}\n{name}\n(N(V__doc__\nI1\ndtb.'.encode(), path)
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    save_pickle(pickle.dumps({'array': np.arange(3), 'scalar': np.int64(2)}, protocol=2), path)
    assert read_checkpoint(path)['array'].tolist() == [0, 1, 2]


def test_an_array_is_filled_once_in_its_byte_order(tmp_path):
    """Filled again, it would free memory that a tensor may share by then."""
    path = tmp_path / 'file'
    array = np.array([[1.5, 2.5]], '>f4')
    pickled = pickle.dumps(array, protocol=2)
    save_pickle(pickled, path)
    assert read_checkpoint(path).tolist() == [[1.5, 2.5]]
    state = pickled.index(b'(K\x01')
    save_pickle(pickled[:-1] + pickled[state:], path)
    with pytest.raises(CheckpointError, match=r'array: expected bytes .* \(1, 2\)'):
        read_checkpoint(path)


def by_init_cfg(path):
    PolaSwin(init_cfg={'type': 'Pretrained', 'checkpoint': str(path)}).init_weights()


def by_foreign_init_cfg(path):
    """MMEngine's own loader, by which the other modules of a detector load their weights."""

    class Foreign(BaseModel):
        def forward(self):
            pass

    Foreign(init_cfg={'type': 'Pretrained', 'checkpoint': str(path)}).init_weights()


def by_timm(path):
    timm.create_model('pola_swin_tiny', checkpoint_path=str(path))


READERS = {
    'init_cfg': (by_init_cfg, CheckpointError),
    'init_cfg of another model': (by_foreign_init_cfg, pickle.UnpicklingError),
    'tools': (training_checkpoint.read_training_checkpoint, UsageError),
    'convert': (convert, UsageError),
    'timm': (by_timm, RuntimeError),
}


@pytest.mark.parametrize('reader', READERS)
def test_every_reader_refuses_a_file_that_calls_a_function(reader, weights, attack, tmp_path):
    path = save({'state_dict': weights, 'meta': attack}, tmp_path / 'evil.pth')
    read, error = READERS[reader]
    with pytest.raises(error, match=r'system'):
        read(path)


@pytest.mark.slow
def test_resuming_refuses_a_file_that_calls_a_function(colours, attack, tmp_path):
    save({'state_dict': {}, 'meta': attack}, tmp_path / 'evil.pth')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'evil.pth'))
    with pytest.raises(pickle.UnpicklingError, match='system'):
        run(small_config(colours, tmp_path), resume=True)


def test_importing_backbones_allows_torch_to_read_nothing_more():
    found = [str(allowed) for allowed in torch.serialization.get_safe_globals()]
    assert not [name for name in found if 'mmengine' in name or 'numpy' in name]
