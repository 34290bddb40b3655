"""Reading checkpoints: nothing in a file is executed, whichever reader opens it."""

import argparse
import collections
import os
import pickle
import zipfile

import numpy as np
import pytest
import timm
import torch
from mmengine.model import BaseModel
from safetensors.torch import save_file
from torch.torch_version import TorchVersion

import mmpola.timm  # noqa: F401  # registers the models with timm
from mmpola.backbones import PolaSwin
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.load import load_weights
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.messages import UsageError
from mmpola.openmmlab.start import fit as training_checkpoint
from mmpola.pretraining.convert import convert
from tests.helpers.training import run, small_config


def save(content, path, **options):
    torch.save(content, path, **options)
    return path


@pytest.mark.parametrize('damage', ['truncated', 'safetensors', 'text', 'empty', 'zip'])
def test_a_broken_file_is_named_in_one_line(damage, weights, tmp_path):
    path = save(weights, tmp_path / 'weights.pth')
    if damage == 'truncated':
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == 'safetensors':
        path = tmp_path / 'weights.safetensors'
        save_file(weights, path)
        path.write_bytes(path.read_bytes()[:1000])
    elif damage == 'zip':
        with zipfile.ZipFile(path, 'w') as archive:
            archive.writestr('readme', 'no weights')
    elif damage == 'text':
        path.write_text('hello')
    else:
        path.write_text('')
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(path)
    assert str(raised.value).startswith(f'{path}: not a checkpoint, or truncated')
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


class Node(dict):
    """A dict with a class of its own, like the configs of many projects."""


def test_other_classes_and_functions_of_a_checkpoint_are_inert(build, weights, tmp_path):
    """The authors' files hold their yacs config; a class need not be installed, nor is it run."""
    victim = tmp_path / 'victim'
    content = {
        'model': weights,
        'config': argparse.Namespace(size=224),
        'node': Node(a=[1]),
        'called': Attack(f'open({str(victim)!r}, "w")', eval),
        'array': np.arange(6.0).reshape(2, 3).T,
        'scalar': np.float32(0.5),
    }
    path = save(content, tmp_path / 'foreign.pth')
    load_weights(build(), path)
    found = read_checkpoint(path)
    assert not victim.exists()
    assert vars(found['config'])['size'] == 224
    assert found['node'] == {'a': [1]}
    assert not found['called']
    assert not vars(found['array']) and not vars(found['scalar'])


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
}
if TorchVersion(timm.__version__) >= '1.0.26':  # older ones unpickle, as docs/timm.md says
    READERS['timm'] = (by_timm, RuntimeError)


@pytest.mark.parametrize(
    ('reader', 'old_format'), [('init_cfg', True), *((reader, False) for reader in READERS)]
)
def test_every_reader_refuses_a_file_that_calls_a_function(
    reader, old_format, weights, attack, tmp_path
):
    content = {'state_dict': weights, 'meta': attack}
    path = tmp_path / 'evil.pth'
    save(content, path, _use_new_zipfile_serialization=not old_format)
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
