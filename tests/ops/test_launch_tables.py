"""Launch tables: where they are read from, what of them is used, and that an invalid file is ignored with a warning."""

import json

import pytest
import torch

from mmpola.ops.triton import tables
from mmpola.ops.triton.launch import Launch, Tile, find_launch, find_tile

CPU = torch.device('cpu')
STATE = {'tokens': 128, 'warps': 2, 'stages': 3, 'waves': 6, 'measured': {'chosen': {'seconds': 1e-5}}}
VERSIONS = {'triton': '3.6.0', 'kernels': 'abc'}
CONTENT = {
    'format': 1,
    'capability': [0, 0],
    **VERSIONS,
    'launches': {
        'state power float16 32': STATE,
        'mix_and_gate any float16 32': {'rows': 4, 'columns': 16, 'warps': 2},
    },
}


@pytest.fixture(autouse=True)
def _unread(monkeypatch, tmp_path):
    monkeypatch.delenv(tables.ENVIRONMENT, raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(tables, 'FOLDER', tmp_path / 'package')
    monkeypatch.setattr(tables, 'versions', lambda: VERSIONS)
    tables._read_table.cache_clear()
    with tables.use_table(tables.LaunchTable()):
        pass  # forgets what is kept of other tables
    yield
    monkeypatch.undo()
    tables._read_table.cache_clear()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def with_stages(stages):
    return {**CONTENT, 'launches': {'state power float16 32': {**STATE, 'stages': stages}}}


def state_launch(dtype=torch.float16):
    return find_launch('state', 'power', dtype, 32, CPU)


@pytest.fixture
def shipped():
    """The launch that `state_launch` returns without a table."""
    with tables.use_table(tables.LaunchTable()):
        return state_launch()


def test_the_table_decides_where_it_has_a_launch(shipped):
    write(tables.user_table_path('interpreter'), CONTENT)
    assert state_launch() == Launch(128, 2, 3, 6)
    assert find_tile('mix_and_gate', torch.float16, 32, CPU) == Tile(4, 16, 2)
    assert state_launch(torch.bfloat16) == shipped
    assert find_tile('mix_and_gate', torch.float32, 32, CPU) != Tile(4, 16, 2)


def test_the_named_file_precedes_the_users_and_that_precedes_the_shipped_one(monkeypatch, tmp_path):
    write(tmp_path / 'package' / 'tables' / 'sm_00.json', with_stages(5))
    assert tables._read_table(CPU)[tables.Key('state', 'power', 'float16', 32)]['stages'] == 5
    found = {}
    for name, value in {
        'user': None,
        'named': str(write(tmp_path / 'named.json', with_stages(7))),
        'empty': '',
    }.items():
        write(tables.user_table_path('interpreter'), with_stages(6))
        tables._read_table.cache_clear()
        if value is not None:
            monkeypatch.setenv(tables.ENVIRONMENT, value)
        (launch,) = tables.launch_table(CPU).values()
        found[name] = launch['stages']
    assert found == {'user': 6, 'named': 7, 'empty': 5}


@pytest.mark.parametrize(
    ('content', 'reason'),
    [
        ('{', 'Expecting property name enclosed in double quotes: line 1 column 2 (char 1)'),
        ([], "expected an object with 'launches', as `python -m benchmarks.gpu` writes it"),
        ({**CONTENT, 'format': 2}, 'format: expected 1, got 2'),
        ({**CONTENT, 'capability': [9, 0]}, 'capability: expected [0, 0], got [9, 0]'),
        ({**CONTENT, 'kernels': 'abd'}, 'it was measured with other kernels, run `python -m benchmarks.gpu` again'),
        (
            {**CONTENT, 'launches': {'state power float16 32': {**STATE, 'tokens': 20}}},
            'state power float16 32: tokens: expected a power of two from 16, got 20',
        ),
        (
            {**CONTENT, 'launches': {'state power float16 32': {'tokens': 16, 'warps': 4, 'stages': 2}}},
            'state power float16 32: waves: expected a positive integer, got None',
        ),
        (
            {**CONTENT, 'launches': {'states power float16 32': STATE}},
            "states power float16 32: expected a name like 'state power float16 32', its first word one of "
            f'{list(tables.FIELDS)}',
        ),
    ],
)
def test_an_invalid_file_is_ignored_with_one_warning(content, reason, shipped, caplog):
    path = write(tables.user_table_path('interpreter'), content)
    for _ in range(2):
        assert tables.launch_table(CPU) == tables.LaunchTable()
    assert caplog.messages == [f'launch table {path} is ignored: {reason}']
    assert state_launch() == shipped


def test_a_named_file_that_is_missing_is_reported(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(tables.ENVIRONMENT, str(tmp_path / 'missing.json'))
    assert not tables.launch_table(CPU)
    assert len(caplog.messages) == 1
    assert str(tmp_path / 'missing.json') in caplog.messages[0]


def test_a_file_is_read_once():
    path = write(tables.user_table_path('interpreter'), with_stages(3))
    first = tables.launch_table(CPU)
    write(path, with_stages(4))
    assert tables.launch_table(CPU) is first


def test_another_table_is_used_inside_a_block_only(shipped):
    key = tables.Key.of('state', 'power', torch.float16, 32)
    with tables.use_table(tables.LaunchTable({key: {'tokens': 16, 'warps': 1, 'stages': 1, 'waves': 1}})):
        assert state_launch() == Launch(16, 1, 1, 1)
    assert state_launch() == shipped
