"""Launch tables: where they are read from, what of them is used, and that an invalid file is an
error.
"""

import json

import pytest
import torch

from mmpola.ops import self_check
from mmpola.ops.triton import VERSION, tables
from mmpola.ops.triton.launch import Launch, Tile, find_launch, find_tile

CPU = torch.device('cpu')
STATE = {
    'tokens': 128,
    'warps': 2,
    'stages': 3,
    'waves': 6,
    'share': 50,
    'measured': {'chosen': {'seconds': 1e-5}},
}
CONTENT = {
    'format': tables.FORMAT,
    'capability': [0, 0],
    'triton': f'{VERSION}.9',
    'launches': {
        'state power float16 32': STATE,
        'mix_and_gate any float16 32': {'rows': 4, 'columns': 16, 'warps': 2},
    },
}


@pytest.fixture(autouse=True)
def shipped(monkeypatch, tmp_path):
    """The path of the file that would be shipped for the interpreter; tables are read anew."""
    monkeypatch.delenv(tables.ENVIRONMENT, raising=False)
    monkeypatch.setattr(tables, 'FOLDER', tmp_path / 'package')
    tables._read_table.cache_clear()
    with tables.use_table(tables.LaunchTable()):
        pass  # forgets what is kept of other tables
    yield tmp_path / 'package' / 'tables' / 'sm_00.json'
    monkeypatch.undo()
    tables._read_table.cache_clear()
    with tables.use_table(tables.LaunchTable()):
        pass


@pytest.fixture
def named(monkeypatch, tmp_path):
    """The path of a file that MMPOLA_LAUNCHES names."""
    monkeypatch.setenv(tables.ENVIRONMENT, str(tmp_path / 'named.json'))
    return tmp_path / 'named.json'


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def with_state(**changed):
    return {**CONTENT, 'launches': {'state power float16 32': {**STATE, **changed}}}


def state_launch(dtype=torch.float16):
    return find_launch('state', 'power', dtype, 32, CPU)


def test_the_table_decides_where_it_has_a_launch(named):
    with tables.use_table(tables.LaunchTable()):
        own = state_launch(torch.bfloat16)
    write(named, CONTENT)
    assert state_launch() == Launch(128, 2, 3, 6, 50)
    assert find_tile('mix_and_gate', torch.float16, 32, CPU) == Tile(4, 16, 2)
    assert state_launch(torch.bfloat16) == own
    assert find_tile('mix_and_gate', torch.float32, 32, CPU) != Tile(4, 16, 2)


@pytest.mark.parametrize(('value', 'stages'), [(None, [5]), ('', []), ('named.json', [7])])
def test_the_named_file_precedes_the_shipped_one(value, stages, shipped, monkeypatch, tmp_path):
    write(shipped, with_state(stages=5))
    write(tmp_path / 'named.json', with_state(stages=7))
    if value is not None:
        monkeypatch.setenv(tables.ENVIRONMENT, value and str(tmp_path / value))
    assert [launch['stages'] for launch in tables.launch_table(CPU).values()] == stages


@pytest.mark.parametrize(
    ('content', 'reason'),
    [
        ('{', 'Expecting property name enclosed in double quotes: line 1 column 2 (char 1)'),
        ([], "expected an object with 'launches', as `python -m benchmarks.gpu` writes it"),
        ({**CONTENT, 'format': 0}, f'format: expected {tables.FORMAT}, got 0'),
        ({**CONTENT, 'capability': [9, 0]}, 'capability: expected [0, 0], got [9, 0]'),
        (with_state(tokens=20), 'tokens: expected a power of two from 16 to 256, got 20'),
        (with_state(tokens=2**20), 'tokens: expected a power of two from 16 to 256, got 1048576'),
        (with_state(waves=None), 'waves: expected an integer from 1 to 64, got None'),
        (with_state(stages=True), 'stages: expected an integer from 1 to 8, got True'),
        ({**CONTENT, 'launches': {'states power float16 32': STATE}}, 'expected a name like'),
        ({**CONTENT, 'launches': {'state powers float16 32': STATE}}, 'expected a name like'),
        ({**CONTENT, 'launches': {'state power float16 48': STATE}}, 'expected a name like'),
    ],
)
def test_an_invalid_file_is_an_error(content, reason, named):
    write(named, content)
    with pytest.raises(
        ValueError, match='MMPOLA_LAUNCHES: expected a launch table of this GPU, got '
    ) as raised:
        tables.launch_table(CPU)
    assert str(named) in str(raised.value)
    assert reason in str(raised.value)


def test_a_named_file_that_is_missing_is_an_error(named):
    with pytest.raises(ValueError, match=r'MMPOLA_LAUNCHES: .*named\.json.*No such file'):
        tables.launch_table(CPU)


@pytest.mark.parametrize('version', ['2.1.0', None])
def test_a_table_of_another_triton_is_not_used_which_is_said_once(
    version, named, monkeypatch, caplog
):
    monkeypatch.setattr(self_check, '_logged', set())
    write(named, {**CONTENT, 'triton': version})
    for _ in range(2):
        tables._read_table.cache_clear()  # as for a second GPU
        assert tables.launch_table(CPU) == {}
    (message,) = caplog.messages
    assert str(named) in message
    assert VERSION in message
    assert str(version) in message


def test_a_file_is_read_once(named):
    write(named, with_state(stages=3))
    first = tables.launch_table(CPU)
    write(named, with_state(stages=4))
    assert tables.launch_table(CPU) is first


def test_another_table_is_used_inside_a_block_only():
    before = state_launch()
    key = tables.Key.of('state', 'power', torch.float16, 32)
    with tables.use_table({key: {'tokens': 16, 'warps': 1, 'stages': 1, 'waves': 1, 'share': 9}}):
        assert state_launch() == Launch(16, 1, 1, 1, 9)
    assert state_launch() == before
