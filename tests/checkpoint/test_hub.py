"""Checkpoints by name: which file is taken, what is downloaded and how often, what failures say."""

import io
from threading import Thread

import huggingface_hub
import pytest
import torch
from safetensors.torch import save

from mmpola.checkpoint import CheckpointError
from mmpola.checkpoint.hub import (
    MODELS_WITH_WEIGHTS,
    PUBLISHED_MODELS,
    RELEASED_REPOSITORY,
    SHIPPED_MODELS,
    NoSuchFileError,
    is_named_like,
    resolve_checkpoint,
    short_name,
)
from mmpola.checkpoint.load import load_weights
from mmpola.messages import UsageError
from mmpola.openmmlab.start.fit import (
    read_checkpoint_for,
    read_training_checkpoint,
    starting_weights,
)
from mmpola.pretraining.convert import verify_weights
from mmpola.zoo import NAMED
from tests.helpers.hub_server import content

URL = '{url}/pola_swin_t.pth'
HUB = f'hf://{RELEASED_REPOSITORY}/pola_swin_t.pth'
MODEL = 'mmpola://pola_swin_tiny'


def refusal(name):
    with pytest.raises(CheckpointError) as raised:
        resolve_checkpoint(name)
    assert '\n' not in str(raised.value)
    return str(raised.value)


def test_local_names(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    path = tmp_path / 'my weights.pth'
    path.write_bytes(content())
    for name in (path, str(path), '~/my weights.pth'):
        assert resolve_checkpoint(name) == path
    for name in ('none.pth', '~/none.pth', f'{"x" * 400}.pth'):
        with pytest.raises(NoSuchFileError, match=f'^{name}: no such checkpoint file'):
            resolve_checkpoint(name)


@pytest.mark.parametrize(
    ('name', 'file'),
    [
        (HUB, 'pola_swin_t.pth'),
        (f'hf://{RELEASED_REPOSITORY}/nested/polaformer_pp_b2.pth', 'nested/polaformer_pp_b2.pth'),
        (MODEL, 'pola_swin_t.pth'),
        (URL, 'pola_swin_t.pth'),
    ],
)
def test_a_file_is_downloaded_once(hub, name, file):
    name = name.format(url=hub.url)
    first = resolve_checkpoint(name)
    assert first.read_bytes() == hub.files[file]
    hub.requests.clear()
    assert resolve_checkpoint(name) == first
    assert hub.gets == [file] and not hub.requests


def test_one_of_several_users_of_a_machine_downloads(hub):
    """Threads stand for processes: the lock is one of files."""
    found = []
    users = []
    for _ in range(3):
        user = Thread(target=lambda: found.append(resolve_checkpoint(URL.format(url=hub.url))))
        user.start()
        users.append(user)
    for user in users:
        user.join()
    assert len(found) == 3 and len(set(found)) == 1
    assert hub.gets == ['pola_swin_t.pth']


def test_a_file_in_the_checkpoints_folder_is_taken_first(hub, tmp_path):
    (tmp_path / 'checkpoints').mkdir()
    for name in ('pola_swin_t', 'pola_swin_tiny'):  # the short name and, before it, the whole one
        path = tmp_path / 'checkpoints' / f'{name}.pth'
        path.write_bytes(content())
        assert resolve_checkpoint(MODEL).resolve() == path
    assert not hub.requests


def test_urls_with_the_same_file_name_have_files_of_their_own(hub):
    hub.files['other/pola_swin_s.pth'] = content(9.0)
    one = resolve_checkpoint(f'{hub.url}/pola_swin_s.pth')
    other = resolve_checkpoint(f'{hub.url}/other/pola_swin_s.pth')
    assert one.read_bytes() != other.read_bytes()


WITHOUT_WEIGHTS = [model for model in NAMED if model not in MODELS_WITH_WEIGHTS]


@pytest.mark.parametrize('model', WITHOUT_WEIGHTS)
def test_a_model_without_published_weights_is_a_local_file_or_nothing(model, hub, tmp_path):
    local = f'checkpoints/{short_name(model)}.pth'
    message = refusal(f'mmpola://{model}')
    assert message.startswith(f'mmpola://{model}: expected the file {local}, got none')
    assert ('pan.baidu.com' in message) == model.startswith('polaformer_pp')
    (tmp_path / 'checkpoints').mkdir()
    (tmp_path / local).write_bytes(content())
    assert str(resolve_checkpoint(f'mmpola://{model}')) == local
    assert not hub.requests


def test_models_with_weights_have_names():
    assert set(MODELS_WITH_WEIGHTS) <= NAMED.keys()


NAMES_OF_FILES = [
    'pola_{family}_{letter}.pth',
    'PolaFormer-{Family}-{Size}.pth',
    'weights/pola{family}_{size}_82.6.safetensors',
    '{family}/{size}/model.safetensors',
    'Pola{Family}{Letter}-224.pth',
]


@pytest.mark.parametrize('form', NAMES_OF_FILES)
def test_the_hub_is_asked_how_its_files_are_named(form, hub, tmp_path, monkeypatch):
    hub.files.clear()
    for number, model in enumerate(PUBLISHED_MODELS):
        _, family, size = model.split('_')
        names = {'family': family, 'Family': family.title(), 'size': size, 'Size': size.title()}
        letters = {'letter': size[0], 'Letter': size[0].upper()}
        hub.files[form.format(**names, **letters)] = content(float(number))
    hub.files['README.md'] = b'swin t'
    for number, model in enumerate(PUBLISHED_MODELS):
        path = resolve_checkpoint(f'mmpola://{model}')
        assert path.read_bytes() == content(float(number))
    hub.requests.clear()
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', True)
    cached = resolve_checkpoint(MODEL)
    assert cached.read_bytes() == content(2.0)
    (snapshots,) = tmp_path.glob('hub/*/snapshots')
    (commit,) = snapshots.iterdir()
    newer = snapshots / 'newer' / cached.relative_to(commit)
    newer.parent.mkdir(parents=True)
    newer.write_bytes(content(7.0))
    assert resolve_checkpoint(MODEL).read_bytes() == content(7.0)
    assert not hub.requests


@pytest.mark.parametrize(
    ('file', 'model'),
    [
        ('pola_swin_s.pth', 'pola_swin_tiny'),
        ('pola_pvt_t.pth', 'pola_swin_tiny'),
        ('pola_swin_t_384.pth', 'pola_swin_tiny'),
        ('swin_tiny_and_small.pth', 'pola_swin_tiny'),
        ('pola_swin_t.txt', 'pola_swin_tiny'),
        ('latest_swin.pth', 'pola_swin_tiny'),
    ],
)
def test_files_of_other_models_are_told_apart(file, model):
    assert not is_named_like(file, model)


def test_a_file_that_was_fetched_by_its_name_is_not_taken_for_a_model(hub, monkeypatch):
    """Detectors have names like classifiers: only the hub knows whether there is another file."""
    detector = 'detection/pola_swin_t_maskrcnn.pth'
    hub.files[detector] = content(5.0)
    fetched = resolve_checkpoint(f'hf://{RELEASED_REPOSITORY}/{detector}')
    assert refusal(MODEL).startswith(f'{MODEL}: expected one file named like pola_swin_tiny in ')
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', True)
    assert 'expected one file' in refusal(MODEL)  # as the hub said before
    monkeypatch.setattr('mmpola.checkpoint.hub.LIST_OF_FILES', 'none')  # it was never asked
    assert resolve_checkpoint(MODEL) == fetched
    assert resolve_checkpoint(MODEL, download=False) == fetched


def test_a_file_that_was_renamed_is_found_by_asking_again(hub):
    """The list was remembered, and its file not downloaded: the hub may have been busy then."""
    weights = hub.files.pop('pola_swin_t.pth')
    hub.files['swin_tiny_old.pth'] = weights
    hub.busy = ['swin_tiny_old.pth']
    assert 'cannot be downloaded' in refusal(MODEL)
    lists = [path for path in hub.requests if path.startswith('/api/')]
    assert 'cannot be downloaded' in refusal(MODEL)
    assert [path for path in hub.requests if path.startswith('/api/')] == lists  # not asked again
    del hub.files['swin_tiny_old.pth']
    hub.busy = []
    hub.files['swin_tiny_new.pth'] = weights
    assert resolve_checkpoint(MODEL).name == 'swin_tiny_new.pth'


@pytest.mark.parametrize('files', [['model.bin'], ['pola_swin_t.pth', 'swin_tiny_ema.pth'], []])
def test_no_file_or_several_are_listed(files, hub):
    hub.files.clear()
    hub.files.update(dict.fromkeys(files, content()))
    message = refusal(MODEL)
    assert message.startswith(f'{MODEL}: expected one file named like pola_swin_tiny in {hub.url}/')
    assert all(file in message for file in files)
    assert message.endswith(f'; hf://{RELEASED_REPOSITORY}/FILE names one of them')
    hub.files['\x1b]0;title.bin'] = content()
    assert '\x1b' not in refusal(MODEL)
    assert not hub.gets


def test_a_file_with_the_name_but_not_the_shapes_of_a_model_names_the_others(hub, build, weights):
    other = io.BytesIO()
    torch.save({'model': {**weights, 'stages.0.blocks.0.norm1.weight': torch.ones(7)}}, other)
    hub.files['pola_swin_t.pth'] = other.getvalue()
    remedy = f'nothing was loaded; hf://{RELEASED_REPOSITORY}/FILE names another file'
    with pytest.raises(CheckpointError) as raised:
        load_weights(build(), MODEL)
    first, *_ = str(raised.value).splitlines()
    assert first.startswith(f'{MODEL} (')
    assert first.endswith(f'{remedy}: {", ".join(hub.files)}')
    with pytest.raises(CheckpointError, match=f'{remedy}: {", ".join(hub.files)}'):
        read_checkpoint_for(MODEL, build())  # as scripts do
    with pytest.raises(UsageError, match=f'FILE names another file: {", ".join(hub.files)}'):
        verify_weights(weights, 'pola_swin_tiny', resolve_checkpoint(MODEL))
    with pytest.raises(UsageError, match=f'FILE names another file: {", ".join(hub.files)}'):
        starting_weights(read_training_checkpoint(MODEL), torch.nn.Linear(1, 1))
    hub.requests.clear()
    with pytest.raises(CheckpointError) as raised:
        load_weights(build(), HUB)
    assert 'names another file' not in str(raised.value)
    assert not hub.requests


def test_shipped_weights_need_no_network(hub, tmp_path, monkeypatch):
    model = SHIPPED_MODELS[0]
    monkeypatch.setattr('mmpola.checkpoint.hub.SHIPPED_FOLDER', tmp_path)
    path = tmp_path / f'{model}.safetensors'
    assert resolve_checkpoint(f'mmpola://{model}', download=False) == path
    assert not hub.requests


RELEASED = f'{{url}}/{RELEASED_REPOSITORY}/resolve/main'
NOT_DOWNLOADED = [
    (
        f'hf://{RELEASED_REPOSITORY}/none.pth',
        '404',
        f'{RELEASED}/none.pth on another machine and give its path',
    ),
    ('{url}/none.pth', '404', '{url}/none.pth on another machine and give its path'),
    (
        'http://127.0.0.1:9/weights.pth',
        'refused',
        'http://127.0.0.1:9/weights.pth on another machine and give its path',
    ),
    ('http://[::1/x', 'Invalid IPv6 URL', 'http://[::1/x on another machine and give its path'),
]


@pytest.mark.parametrize(('name', 'reason', 'advice'), NOT_DOWNLOADED)
def test_what_cannot_be_downloaded_says_why_and_names_the_address(hub, name, reason, advice):
    name = name.format(url=hub.url)
    message = refusal(name)
    assert message.startswith(f'{name}: cannot be downloaded (')
    assert reason in message
    assert message.endswith(f'; download {advice.format(url=hub.url)}')


@pytest.mark.parametrize('name', [HUB, MODEL])
def test_offline_what_is_not_in_the_cache_is_refused(hub, name, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', True)
    address = f'{hub.url}/{RELEASED_REPOSITORY}'
    if name == HUB:
        address += '/resolve/main/pola_swin_t.pth'
    assert f'; download {address} on another machine' in refusal(name)
    assert not hub.requests
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', False)
    path = resolve_checkpoint(name)
    assert huggingface_hub.hf_hub_download(RELEASED_REPOSITORY, 'pola_swin_t.pth') == str(path)


@pytest.mark.parametrize('sent', [b'<html>Please log in</html>', b'', content()[:1000]])
def test_what_is_no_checkpoint_is_not_kept_and_the_download_can_be_repeated(sent, hub, tmp_path):
    whole = hub.files['pola_swin_t.pth']
    hub.files['pola_swin_t.pth'] = sent
    name = URL.format(url=hub.url)
    assert 'the server sent no checkpoint' in refusal(name)
    assert not list(tmp_path.rglob('*.pth'))
    hub.files['pola_swin_t.pth'] = whole
    assert resolve_checkpoint(name).read_bytes() == whole


def test_other_formats_are_checkpoints_too(hub, tmp_path):
    torch.save({'a': torch.ones(3)}, tmp_path / 'old', _use_new_zipfile_serialization=False)
    whole = save({'a': torch.ones(3)})
    hub.files |= {'old.pth': (tmp_path / 'old').read_bytes(), 'a.safetensors': whole}
    assert resolve_checkpoint(f'{hub.url}/old.pth').suffix == '.pth'
    assert resolve_checkpoint(f'{hub.url}/a.safetensors').suffix == '.safetensors'
    hub.files['b.safetensors'] = whole[:-1]
    assert 'the server sent no checkpoint' in refusal(f'{hub.url}/b.safetensors')


@pytest.mark.parametrize(
    ('name', 'rule'),
    [
        (
            's3://bucket/weights.pth',
            'expected a path or one of http://, https://, hf://, mmpola://',
        ),
        ('hf://owner/file.pth', 'expected hf://OWNER/REPOSITORY/FILE'),
        ('mmpola://pola_swin_t', 'expected mmpola:// and one of pola_pvt_nano, '),
        ('mmpola://../secret', 'expected mmpola:// and one of pola_pvt_nano, '),
    ],
)
def test_other_names_are_refused_without_a_network(name, rule, hub):
    assert refusal(name).startswith(f'{name}: {rule}')
    assert not hub.requests


def test_short_names_are_those_of_the_configs(root):
    used = set()
    for path in (root / 'configs').glob('imagenet_pola*.py'):
        used.add(path.stem.removeprefix('imagenet_'))
    ablations = {name for name in used if name.startswith('pola_deit_t_')}
    assert used - ablations <= {short_name(model) for model in NAMED}


def test_an_unreachable_hub_is_asked_once(monkeypatch, tmp_path):
    """huggingface_hub itself would try again and again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, 'ENDPOINT', 'http://127.0.0.1:9')
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr(
        huggingface_hub, 'hf_hub_download', lambda *arguments: pytest.fail('downloads')
    )
    with pytest.raises(CheckpointError, match='mmpola://pola_swin_tiny: cannot be downloaded'):
        resolve_checkpoint('mmpola://pola_swin_tiny')
