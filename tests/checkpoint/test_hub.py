"""Checkpoints by name: what is downloaded, from where, how often, and what every failure says."""

import gzip
import re
import time
from pathlib import Path
from threading import Thread

import huggingface_hub
import pytest
from filelock import FileLock
from safetensors.torch import save
from torch import ones

from mmpola.checkpoint import CheckpointError, download
from mmpola.checkpoint.hub import (
    PUBLISHED_MODELS,
    RELEASED_REPOSITORY,
    matches_model,
    released_checkpoint,
    resolve_checkpoint,
    short_name,
)
from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.zoo import NAMED
from tests.helpers.hub_server import COMMIT, content, file_headers


def downloads(hub, name):
    return sum(hub.file_of(path) == name for path in hub.gets)


def refusal(name):
    with pytest.raises(CheckpointError) as raised:
        resolve_checkpoint(name)
    return str(raised.value)


def test_local_names(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    path = tmp_path / 'my weights.pth'
    path.write_bytes(content())
    names = (path, str(path), '~/my weights.pth', f'file://{tmp_path}/my%20weights.pth')
    assert [resolve_checkpoint(name) for name in names] == [path] * 4
    for name in ('none.pth', '~/none.pth', 'file:///none.pth'):
        with pytest.raises(FileNotFoundError, match=f'^{name}: no such checkpoint file'):
            resolve_checkpoint(name)


@pytest.mark.parametrize(
    ('name', 'file'),
    [
        (f'hf://{RELEASED_REPOSITORY}/pola_swin_t.pth', 'pola_swin_t.pth'),
        (f'hf://{RELEASED_REPOSITORY}/nested/polaformer_pp_b2.pth', 'nested/polaformer_pp_b2.pth'),
        ('mmpola://pola_swin_tiny', 'pola_swin_t.pth'),
        ('{url}/pola_swin_s.pth', 'pola_swin_s.pth'),
    ],
)
def test_a_file_is_downloaded_once(hub, name, file):
    name = name.format(url=hub.url)
    first = resolve_checkpoint(name)
    assert first.read_bytes() == hub.files[file]
    assert resolve_checkpoint(name) == first
    assert downloads(hub, file) == 1


def test_a_file_in_the_checkpoints_folder_is_taken_first(hub, tmp_path):
    (tmp_path / 'checkpoints').mkdir()
    for name in ('pola_swin_t', 'pola_swin_tiny'):  # the short name and, before it, the whole one
        path = tmp_path / 'checkpoints' / f'{name}.pth'
        path.write_bytes(content())
        assert released_checkpoint('pola_swin_tiny').resolve() == path
    assert not hub.gets


def test_urls_with_the_same_file_name_have_files_of_their_own(hub):
    hub.files['other/pola_swin_s.pth'] = content(9.0)
    one, other = (resolve_checkpoint(f'{hub.url}/{path}pola_swin_s.pth') for path in ('', 'other/'))
    assert one.read_bytes() != other.read_bytes()


def test_a_model_without_a_unique_file_shows_the_listing(hub):
    del hub.files['pola_pvt_t.pth']
    weights = ', '.join(name for name in hub.files if name.endswith('.pth'))
    message = refusal('mmpola://pola_pvt_tiny')
    assert message.startswith('mmpola://pola_pvt_tiny: expected one file')
    assert f'got {weights}; ' in message
    assert f'hf://{RELEASED_REPOSITORY}/FILE' in message
    assert message.endswith('checkpoints/pola_pvt_t.pth')
    hub.files['pola_swin_tiny_\x1b[2J.pth'] = content()
    message = refusal('mmpola://pola_swin_tiny')
    assert r'got pola_swin_t.pth, pola_swin_tiny_\x1b[2J.pth; ' in message


@pytest.mark.parametrize('model', [model for model in NAMED if model not in PUBLISHED_MODELS])
def test_a_model_without_published_weights_is_a_local_file_or_nothing(model, hub, tmp_path):
    hub.files |= {f'{model}.pth': content(), f'{short_name(model)}.pth': content()}
    local = f'checkpoints/{short_name(model)}.pth'
    message = refusal(f'mmpola://{model}')
    assert message.startswith(f'mmpola://{model}: expected the file {local}, got none')
    by_hand = 'https://pan.baidu.com/s/1tjG-Qq2zFwN_HZswAzxarQ?pwd=atba (code atba)'
    assert (by_hand in message) == model.startswith('polaformer_pp')
    assert '\n' not in message
    (tmp_path / 'checkpoints').mkdir()
    (tmp_path / local).write_bytes(content())
    assert str(resolve_checkpoint(f'mmpola://{model}')) == local
    assert not hub.requests


ELSEWHERE = 'on another machine and give its path'


@pytest.mark.parametrize(
    ('name', 'reason', 'url'),
    [
        (
            f'hf://{RELEASED_REPOSITORY}/none.pth',
            '404',
            f'{{url}}/{RELEASED_REPOSITORY}/resolve/main/none.pth',
        ),
        ('{url}/none.pth', '404', '{url}/none.pth'),
        ('http://127.0.0.1:9/weights.pth', 'refused', 'http://127.0.0.1:9/weights.pth'),
    ],
)
def test_what_cannot_be_downloaded_says_why_and_what_to_do(hub, name, reason, url):
    name = name.format(url=hub.url)
    message = refusal(name)
    assert message.startswith(f'{name}: cannot be downloaded (')
    assert reason in message
    assert message.endswith(f'; download {url.format(url=hub.url)} {ELSEWHERE}')


OFFLINE = {
    'mmpola://pola_swin_tiny': (
        f'download https://huggingface.co/{RELEASED_REPOSITORY}/tree/main on another machine '
        'and save it as checkpoints/pola_swin_t.pth'
    ),
    f'hf://{RELEASED_REPOSITORY}/pola_swin_t.pth': (
        f'download {{url}}/{RELEASED_REPOSITORY}/resolve/main/pola_swin_t.pth {ELSEWHERE}'
    ),
}


@pytest.mark.parametrize('name', OFFLINE)
def test_offline_the_cache_is_used_and_what_is_not_in_it_is_refused(hub, name, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', True)
    assert refusal(name).endswith(OFFLINE[name].format(url=hub.url))
    assert not hub.requests
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', False)
    path = resolve_checkpoint(name)
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_OFFLINE', True)
    file = f'hf://{RELEASED_REPOSITORY}/pola_swin_t.pth'
    assert resolve_checkpoint(file) == path
    assert huggingface_hub.hf_hub_download(RELEASED_REPOSITORY, 'pola_swin_t.pth') == str(path)


def test_other_schemes_are_refused():
    message = refusal('s3://bucket/weights.pth')
    assert message.startswith('s3://bucket/weights.pth: expected a path')
    assert message.endswith('file://, http://, https://, hf://, mmpola://, got s3://')
    assert (
        refusal('hf://owner/file.pth') == 'hf://owner/file.pth: expected hf://OWNER/REPOSITORY/FILE'
    )


def test_one_of_several_users_of_a_machine_downloads(hub):
    """Threads stand for processes: the lock is one of files."""
    hub.silent.add('pola_pvt_t.pth')
    found = []
    users = [
        Thread(target=lambda: found.append(resolve_checkpoint(f'{hub.url}/pola_pvt_t.pth')))
        for _ in range(3)
    ]
    for user in users:
        user.start()
    deadline = time.monotonic() + 1  # time for a second download, if there were one
    while len(hub.gets) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    hub.speak.set()
    for user in users:
        user.join()
    assert len(set(found)) == 1 and len(found) == 3
    assert downloads(hub, 'pola_pvt_t.pth') == 1


HTML = b'<html>Please log in</html>'
PAGE = {'Content-Type': 'text/html'}
WHOLE = content()  # the hub's pola_swin_t.pth
CUT = WHOLE[:1000]
FLIPPED = WHOLE.replace(bytes(64), bytes(63) + b'?', 1)
URL = '{url}/pola_swin_t.pth'
HUB = f'hf://{RELEASED_REPOSITORY}/pola_swin_t.pth'
NO_CHECKPOINT = 'which are no checkpoint'
ANSWERS = {
    'html': (URL, (200, PAGE, HTML), f'got 26 bytes of text/html, {NO_CHECKPOINT}'),
    'nothing': (URL, (204, {}, b''), 'the server answered 204 No Content'),
    'part': (
        URL,
        (206, {'Content-Range': 'bytes 0-999/9999'}, CUT),
        'the server answered 206 Partial Content',
    ),
    'empty': (URL, (200, {'Content-Length': '0'}, b''), f'got 0 bytes of None, {NO_CHECKPOINT}'),
    'gzip': (
        URL,
        (200, {'Content-Encoding': 'gzip'}, gzip.compress(WHOLE)),
        f'bytes of gzip, {NO_CHECKPOINT}',
    ),
    'too short': (
        URL,
        (200, file_headers(WHOLE), CUT),
        f'incomplete, got 1000 of {len(WHOLE)} bytes',
    ),
    'cut without a length': (
        URL,
        (200, PAGE, CUT),
        f'got 1000 bytes of text/html, {NO_CHECKPOINT}',
    ),
    'too short, hub': (
        HUB,
        (200, file_headers(WHOLE), CUT),
        f'incomplete, got 1000 of {len(WHOLE)} bytes',
    ),
    'html, hub': (HUB, (200, file_headers(HTML), HTML), f'got 26 bytes of None, {NO_CHECKPOINT}'),
    'altered, hub': (HUB, (200, file_headers(WHOLE), FLIPPED), 'another SHA-256 than the hub'),
}


@pytest.mark.parametrize(('name', 'answer', 'reason'), ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_checkpoint_is_not_kept_and_the_download_can_be_repeated(
    name, answer, reason, hub, tmp_path
):
    name = name.format(url=hub.url)
    hub.answers['pola_swin_t.pth'] = answer
    message = refusal(name)
    assert message.startswith(f'{name}: ') and reason in message
    assert not [path for path in tmp_path.rglob('*.pth*') if path.suffix != '.lock']
    hub.answers.clear()
    assert resolve_checkpoint(name).read_bytes() == WHOLE


@pytest.mark.parametrize('name', [URL, HUB, 'mmpola://pola_swin_tiny'])
def test_a_server_that_sends_nothing_is_given_up(hub, name, monkeypatch):
    monkeypatch.setattr(download, 'SILENT_SECONDS', 0.2)
    hub.silent |= {'pola_swin_t.pth', ''}
    name = name.format(url=hub.url)
    assert 'timed out' in refusal(name)
    assert 'timed out' in refusal(name)  # the lock is free again
    assert len(hub.requests) == 2  # each was asked once


@pytest.mark.parametrize(
    'headers',
    [
        {'X-Linked-ETag': '"../../../important.txt"'},
        {'X-Linked-ETag': '"{folder}/important.txt"'},
        {'X-Linked-ETag': '', 'ETag': ''},
        {'X-Repo-Commit': '../../../..'},
        {'X-Repo-Commit': ''},
    ],
)
def test_an_answer_that_leads_out_of_the_cache_is_refused(hub, headers, tmp_path):
    important = tmp_path / 'important.txt'
    important.write_text('do not remove')
    headers = {key: value.format(folder=tmp_path) for key, value in headers.items()}
    hub.answers['pola_swin_t.pth'] = (200, {**file_headers(WHOLE), **headers}, HTML)
    before = {path for path in tmp_path.rglob('*') if path.is_file()}
    message = refusal(HUB)
    assert message.startswith(f'{HUB}: cannot be downloaded (') and '\n' not in message
    assert repr(headers.get('X-Linked-ETag', headers.get('X-Repo-Commit')).strip('"')) in message
    assert important.read_text() == 'do not remove'
    assert {path for path in tmp_path.rglob('*') if path.is_file()} == before
    assert not hub.gets


def drip(server, sent):
    """Yield pieces of a file, each in time, for three seconds, and count them in `sent`."""
    for number in range(300):
        if not server.speak.wait(0.01):
            sent.append(number)
            yield bytes(10)


@pytest.mark.parametrize('name', [URL, HUB])
@pytest.mark.parametrize(
    ('limit', 'value', 'rule'),
    [
        ('TOTAL_SECONDS', 0.3, 'expected the whole file within 0.3 seconds'),
        ('MAX_BYTES', 50, 'expected at most 50 bytes'),
    ],
)
def test_a_download_that_does_not_end_is_given_up(
    hub, name, limit, value, rule, monkeypatch, tmp_path
):
    monkeypatch.setattr(download, limit, value)
    headers = {'X-Repo-Commit': COMMIT, 'ETag': '"etag"'}
    sent = []
    hub.answers['pola_swin_t.pth'] = (200, headers, drip(hub, sent))
    assert rule in refusal(name.format(url=hub.url))
    assert len(sent) < 300  # given up before the server is
    assert not [path for path in tmp_path.rglob('*.pth*') if path.suffix != '.lock']


def test_a_file_that_is_announced_too_large_is_not_begun(hub, monkeypatch):
    monkeypatch.setattr(download, 'MAX_BYTES', len(WHOLE))
    hub.answers['pola_swin_t.pth'] = (200, {'Content-Length': str(len(WHOLE) + 1)}, b'')
    rule = f'expected at most {len(WHOLE)} bytes, got {len(WHOLE) + 1} or more'
    assert rule in refusal(URL.format(url=hub.url))
    hub.answers.clear()
    assert resolve_checkpoint(URL.format(url=hub.url)).stat().st_size == len(WHOLE)


@pytest.mark.parametrize('name', [URL, HUB, 'mmpola://pola_swin_tiny'])
def test_a_server_that_never_begins_to_answer_is_given_up(hub, name, monkeypatch):
    """It sends one header after the other, each in time."""
    monkeypatch.setattr(download, 'ANSWER_SECONDS', 0.3)
    hub.dripping |= {'pola_swin_t.pth', ''}
    assert 'expected an answer within 0.3 seconds' in refusal(name.format(url=hub.url))


@pytest.mark.parametrize('name', [URL, HUB])
def test_waiting_for_the_download_of_another_process_ends(hub, name, monkeypatch, tmp_path):
    monkeypatch.setattr(download, 'TOTAL_SECONDS', 0.2)
    name = name.format(url=hub.url)
    resolve_checkpoint(name).unlink()
    (lock,) = tmp_path.rglob('*.lock')
    with FileLock(lock):
        message = refusal(name)
    assert f'within 0.2 seconds, got {lock} locked' in message
    assert resolve_checkpoint(name).read_bytes() == WHOLE


def test_a_token_is_sent_only_to_the_hub(hub, monkeypatch):
    monkeypatch.setenv('HF_TOKEN', 'secret')
    hub.files['elsewhere'] = WHOLE
    location = {'Location': f'{hub.url}/elsewhere'}
    hub.answers['pola_swin_t.pth'] = (302, {**file_headers(b''), **location}, b'')
    hub.answers['pola_swin_t.pth'][1].update(
        {'X-Linked-ETag': file_headers(WHOLE)['X-Linked-ETag']}
    )
    assert resolve_checkpoint(HUB).read_bytes() == WHOLE
    path = f'/{RELEASED_REPOSITORY}/resolve/main/pola_swin_t.pth'
    assert hub.tokens == [(path, 'Bearer secret'), ('/elsewhere', None)]


def test_the_file_of_a_killed_download_is_replaced(hub):
    name = f'{hub.url}/pola_swin_t.pth'
    path = resolve_checkpoint(name)
    path.rename(path.with_name(f'{path.name}.part.pth'))
    assert resolve_checkpoint(name).read_bytes() == content()
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, f'{path.name}.lock']


@pytest.mark.parametrize('name', [URL, HUB])
@pytest.mark.parametrize('kept', [HTML, CUT, FLIPPED], ids=['html', 'cut', 'flipped'])
def test_the_message_about_a_broken_file_in_a_cache_says_which_one_to_remove(hub, name, kept):
    """Some broken downloads cannot be noticed: the server gives no length and the format no sum."""
    name = name.format(url=hub.url)
    resolve_checkpoint(name).write_bytes(kept)
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(name)
    path = re.search('; remove (.*) to download it again$', str(raised.value)).group(1)
    Path(path).unlink()
    assert read_checkpoint(name)['model']['x'].eq(0).all()


def test_safetensors_are_kept_if_they_are_whole(hub):
    whole = save({'a': ones(3)})
    hub.files['a.safetensors'] = whole
    hub.answers['a.safetensors'] = (200, {}, whole[:-1])  # a server that gives no length
    assert 'which are no checkpoint' in refusal(f'{hub.url}/a.safetensors')
    hub.answers.clear()
    assert resolve_checkpoint(f'{hub.url}/a.safetensors').suffix == '.safetensors'


def test_names_that_are_no_file_names(hub):
    hub.files |= {name: content() for name in ('a\0b.pth', f'{"x" * 400}.pth', f'{"é" * 100}.pth')}
    for name in ('a%00b.pth', f'{"x" * 400}.pth', f'{"%C3%A9" * 100}.pth'):
        assert resolve_checkpoint(f'{hub.url}/{name}').read_bytes() == content()
    for name in (f'{"x" * 400}.pth', 'file:///a%00b.pth', '~nobody-here/a.pth'):
        with pytest.raises(FileNotFoundError, match='no such checkpoint file'):
            resolve_checkpoint(name)
    for name in (
        'hf://../..',
        'hf://../../a.pth',
        'hf://owner/repository/../../a.pth',
        'hf://owner//a.pth',
    ):
        assert refusal(name) == f'{name}: expected hf://OWNER/REPOSITORY/FILE'
    assert '\n' not in refusal(f'hf://owner/repository/{"x" * 400}.pth')
    assert '\n' not in refusal('hf://own er/repository/a.pth')


@pytest.mark.parametrize(
    ('name', 'meant'),
    [
        ('mmpola://pola_swin_t', '; did you mean mmpola://pola_swin_tiny?'),
        ('mmpola://POLA_SWIN_TINY', '; did you mean mmpola://pola_swin_tiny?'),
        ('mmpola://polaformer_b2', '; did you mean mmpola://polaformer_pp_b2?'),
        ('mmpola://foo_b2', ''),
        ('mmpola://../secret', ''),
        ('mmpola://', ''),
    ],
)
def test_an_unknown_model_is_refused_without_a_network(name, meant, tmp_path, monkeypatch, hub):
    (tmp_path / 'checkpoints').mkdir()
    (tmp_path / 'secret.pth').write_bytes(content())
    message = refusal(name)
    assert message.startswith(f'{name}: expected the name of a model')
    assert message.endswith(f'mmpola://pola_pvt_tiny{meant}')
    assert not hub.requests


def test_files_are_matched_by_family_size_and_image_size():
    expected = {
        'pola_swin_t.pth': 'pola_swin_tiny',
        'swin_tiny/checkpoint.pth': 'pola_swin_tiny',
        'Pola-SwinS.pth': 'pola_swin_small',
        'pola_swin_b.pth': 'pola_swin_base',
        'tiny/pola_pvt.pth': 'pola_pvt_tiny',
        'PVT-S.pth': 'pola_pvt_small',
    }
    found = {
        file: [model for model in PUBLISHED_MODELS if matches_model(file, model)]
        for file in expected
    }
    assert found == {file: [model] for file, model in expected.items()}
    others = (
        'resnet50_tiny.pth',
        'swin_best.pth',
        'Swin-B-384.pth',
        'pvt_v2_tiny.pth',
        'pvtv2_small.pth',
        'deit_tiny_swin.pth',
        'pola_pvt_b.pth',  # the authors' name of their largest PVT
        'PolaFormer++_b2.pth',
    )
    assert not [
        model for model in PUBLISHED_MODELS for file in others if matches_model(file, model)
    ]


def test_short_names_are_those_of_the_configs(root):
    used = {
        path.stem.removeprefix('imagenet_') for path in (root / 'configs').glob('imagenet_pola*.py')
    }
    ablations = {name for name in used if name.startswith('pola_deit_t_')}
    assert used - ablations - {'pola_swin_shapes'} <= {short_name(model) for model in NAMED}
