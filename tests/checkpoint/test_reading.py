"""Reading checkpoints: nothing in a file is executed, whichever reader opens it."""

import os
import pickle
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.runner.checkpoint import CheckpointLoader

import mmpola.timm  # noqa: F401  # registers the models with timm
from mmpola.backbones import PolaSwin
from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint import training as training_checkpoint
from mmpola.checkpoint.reading import read_array, read_checkpoint, read_pickle, register_mmengine_reader, stubs_in
from mmpola.checkpoint.weights import load_weights
from mmpola.engine.convert import convert
from mmpola.messages import UsageError
from tests.helpers.small_training import run, small_config

ARCH = {'embed_dims': 16, 'depths': (1, 1, 2, 1), 'num_heads': (1, 2, 4, 8)}


def build(**arguments):
    return PolaSwin(ARCH, pretrain_img_size=64, **arguments)


@pytest.fixture
def weights():
    return build().state_dict()


def save(content, path, **options):
    torch.save(content, path, **options)
    return path


def test_a_missing_file_says_where_weights_are_found():
    with pytest.raises(FileNotFoundError) as raised:
        read_checkpoint('checkpoints/none.pth')
    assert str(raised.value) == (
        'checkpoints/none.pth: no such checkpoint file; '
        'released weights are downloaded by name, for example mmpola://pola_swin_tiny'
    )


@pytest.mark.parametrize('damage', ['truncated', 'text', 'empty', 'zip'])
def test_a_broken_file_is_named_in_one_line(damage, weights, tmp_path):
    path = save(weights, tmp_path / 'weights.pth')
    if damage == 'truncated':
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == 'zip':
        with zipfile.ZipFile(path, 'w') as archive:
            archive.writestr('readme', 'no weights')
    else:
        path.write_text('hello' if damage == 'text' else '')
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(path)
    assert str(raised.value).startswith(f'{path}: not a checkpoint, or truncated (')
    assert '\n' not in str(raised.value)


class Attack:
    """An object that is pickled as a call of os.system."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize('old_format', [False, True])
def test_a_file_that_calls_a_function_is_refused_and_nothing_runs(weights, tmp_path, old_format):
    victim, path = tmp_path / 'victim', tmp_path / 'evil.pth'
    content = {'model': weights, 'config': Attack(f'touch {victim}')}
    save(content, path, _use_new_zipfile_serialization=not old_format)
    with pytest.raises(CheckpointError) as raised:
        load_weights(build(), path)
    assert str(raised.value) == f'{path}: the file calls posix.system when read; refused, nothing was run'
    assert not victim.exists()
    pickle.loads(pickle.dumps(Attack(f'touch {victim}')))
    assert victim.exists(), 'the attack itself must work, or this test shows nothing'


def test_pickles_and_arrays_of_data_sets_are_read_by_the_same_policy(tmp_path):
    victim, path = tmp_path / 'victim', tmp_path / 'file'
    python_2 = b"(dp0\nS'caf\\xe9'\np1\nI3\ns."  # {'caf\xe9': 3} in protocol 0
    path.write_bytes(python_2)
    assert read_pickle(path, encoding='bytes') == {b'caf\xe9': 3}
    for content in (np.arange(6).reshape(2, 3), np.array([['a', 1], ['b', 2.5]], object)):
        np.save(tmp_path / 'array.npy', content)
        assert read_array(tmp_path / 'array.npy').tolist() == content.tolist()
    message = f'{path}: the file calls posix.system when read; refused, nothing was run'
    for write, read in ((pickle.dump, read_pickle), (save_objects, read_array)):
        with path.open('wb') as file:
            write(Attack(f'touch {victim}'), file)
        with pytest.raises(CheckpointError) as raised:
            read(path)
        assert str(raised.value) == message
    assert not victim.exists()
    path.write_bytes(python_2[:9])
    for read, kind in ((read_pickle, 'a pickle'), (read_array, 'an array')):
        with pytest.raises(CheckpointError, match=rf'^{path}: not {kind}, or truncated \('):
            read(path)


def save_objects(content, file):
    np.save(file, np.array([content], object))


def by_init_cfg(path):
    build(init_cfg={'type': 'Pretrained', 'checkpoint': str(path)}).init_weights()


def by_foreign_init_cfg(path):
    """MMEngine's own loader, with which all other modules of a detector load their weights."""

    class Foreign(BaseModel):
        def forward(self):
            pass

    register_mmengine_reader()
    Foreign(init_cfg={'type': 'Pretrained', 'checkpoint': str(path)}).init_weights()


def by_timm(path):
    timm.create_model('pola_swin_tiny', arch=ARCH, img_size=64, checkpoint_path=str(path))


READERS = {
    'init_cfg': (by_init_cfg, CheckpointError),
    'init_cfg of another model': (by_foreign_init_cfg, CheckpointError),
    'tools': (training_checkpoint.read, UsageError),
    'convert': (convert, UsageError),
    'timm': (by_timm, RuntimeError),
}


@pytest.mark.parametrize('reader', READERS)
def test_every_reader_refuses_a_file_that_calls_a_function(reader, weights, tmp_path):
    victim = tmp_path / 'victim'
    path = save({'state_dict': weights, 'meta': Attack(f'touch {victim}')}, tmp_path / 'evil.pth')
    read, error = READERS[reader]
    with pytest.raises(error, match=r'system'):
        read(path)
    assert not victim.exists()


def test_resuming_refuses_a_file_that_calls_a_function(colours, tmp_path):
    victim = tmp_path / 'victim'
    save({'state_dict': {}, 'meta': Attack(f'touch {victim}')}, tmp_path / 'evil.pth')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'evil.pth'))
    with pytest.raises(CheckpointError, match=r'the file calls posix\.system when read; refused, nothing was run'):
        run(small_config(colours, tmp_path), resume=True)
    assert not victim.exists()


class Lookup:
    """An object that is pickled as a call of getattr on something other than a stub."""

    def __init__(self, owner, name):
        self.owner, self.name = owner, name

    def __reduce__(self):
        return getattr, (self.owner, self.name)


@pytest.mark.parametrize(
    ('owner', 'name', 'shown'),
    [(torch.Size([1]), 'numel', 'torch.Size([1])'), (HistoryBuffer, '__init__', repr(HistoryBuffer))],
)
def test_a_file_that_looks_up_attributes_is_refused(owner, name, shown, weights, tmp_path):
    path = save({'model': weights, 'config': Lookup(owner, name)}, tmp_path / 'evil.pth')
    with pytest.raises(CheckpointError) as raised:
        load_weights(build(), path)
    message = f'the file looks up {name!r} of {shown} when read; refused, nothing was run'
    assert str(raised.value) == f'{path}: {message}'


SAVE_WITH_YACS = """
import sys, types, torch
yacs, config = types.ModuleType('yacs'), types.ModuleType('yacs.config')
class CfgNode(dict):
    def __init__(self):
        super().__init__(SIZE=224)
        self.__dict__['__immutable__'] = True
CfgNode.__module__ = 'yacs.config'
config.CfgNode = CfgNode
sys.modules.update({'yacs': yacs, 'yacs.config': config})
torch.save({'model': torch.load(sys.argv[1], weights_only=True), 'config': CfgNode()}, sys.argv[2])
"""


def test_a_class_next_to_the_weights_becomes_an_inert_stub(weights, tmp_path):
    """The authors' files hold their yacs config; the class need not be installed, and it is not run."""
    path = tmp_path / 'authors.pth'
    plain = save(weights, tmp_path / 'weights.pth')
    subprocess.run([sys.executable, '-c', SAVE_WITH_YACS, plain, path], check=True)
    load_weights(build(), path)
    content = read_checkpoint(path)
    stub = content['config']
    assert type(stub).__name__ == 'CfgNode'
    assert stub == {'SIZE': 224}
    assert stub.state == {'__immutable__': True}
    assert stubs_in(content) == {'yacs.config.CfgNode'}
    assert stubs_in({'state_dict': weights, 'meta': [('a', 1)]}) == set()


def history():
    return {'message_hub': {'loss': HistoryBuffer([1.5, 2.5], [1, 1])}, 'meta': {'iter': 3}}


def test_the_log_history_is_rebuilt(tmp_path):
    path = save(history(), tmp_path / 'checkpoint.pth')
    assert read_checkpoint(path)['message_hub']['loss'].mean() == 2.0
    register_mmengine_reader()
    assert torch.load(path, weights_only=True)['message_hub']['loss'].mean() == 2.0  # as timm reads it


def test_torch_load_follows_the_same_policy(tmp_path):
    register_mmengine_reader()
    path = save({'evil': Lookup(SimpleNamespace, 'mro')}, tmp_path / 'checkpoint.pth')
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    path = save({'evil': Lookup(HistoryBuffer, '__init__')}, tmp_path / 'checkpoint.pth')
    with pytest.raises(CheckpointError, match='the file looks up'):
        torch.load(path, weights_only=True)


def test_without_mmengine_the_log_history_is_a_stub(root, tmp_path):
    path = save(history(), tmp_path / 'checkpoint.pth')
    code = f"""
import sys
sys.modules['mmengine'] = None
from mmpola.checkpoint.reading import extend_torch_allow_list, read_checkpoint, stubs_in
import torch
print(*stubs_in(read_checkpoint({str(path)!r})))
extend_torch_allow_list()
print(*stubs_in(torch.load({str(path)!r}, weights_only=True)))
"""
    output = subprocess.check_output([sys.executable, '-c', code], cwd=root, text=True)
    assert output.splitlines() == ['mmengine.logging.history_buffer.HistoryBuffer'] * 2


def test_a_file_that_was_read_already_is_handed_to_mmengine_once(tmp_path):
    path = str(save({'state_dict': {'a': torch.ones(1)}}, tmp_path / 'checkpoint.pth'))
    contents = {path: {'state_dict': 'already read'}}
    register_mmengine_reader(contents)
    assert CheckpointLoader.load_checkpoint(path) == {'state_dict': 'already read'}
    assert contents == {}
    assert CheckpointLoader.load_checkpoint(path)['state_dict']['a'] == 1
    assert CheckpointLoader._get_checkpoint_loader('https://host/file.pth').__name__ == 'load_from_name'
