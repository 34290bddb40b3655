"""`python -m benchmarks.gpu`: a dry run in the interpreter, and the rules by which it measures, chooses and judges."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from benchmarks import measure
from benchmarks.gpu import correctness, problems, processes, report, tuning
from benchmarks.gpu.candidates import Hardware, attention_launches, estimate, tiles
from benchmarks.gpu.launches import Binary
from benchmarks.gpu.processes import Checker, Compiler
from benchmarks.gpu.session import Budget, DeviceLostError, Item, Session, earlier_parts
from benchmarks.measure import Timing
from benchmarks.records import results_folder
from mmpola.ops.triton import tables
from mmpola.ops.triton.backend import INTERPRETED
from mmpola.ops.triton.launch import find_launch, find_tile
from mmpola.ops.triton.tables import ATTENTION_FIELDS, TILE_FIELDS

CPU = torch.device('cpu')
ENVIRONMENT = {
    **dict.fromkeys(('torch', 'triton', 'kernels', 'commit'), 'any'),
    'gpu': 'interpreter',
    'capability': [0, 0],
}

WITHOUT_EXTRAS = """
import runpy, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'rich', 'matplotlib', 'pytest', 'scipy'):
            raise ModuleNotFoundError(f'{name} is blocked', name=name)
sys.meta_path.insert(0, Block())
sys.argv = ['benchmarks.gpu', *sys.argv[1:]]
runpy.run_module('benchmarks.gpu', run_name='__main__')
"""


def run(root, *arguments, script='-m benchmarks.gpu', **environment):
    command = [sys.executable, *(script.split() if script.startswith('-m') else ('-c', script)), *map(str, arguments)]
    return subprocess.run(
        command, cwd=root, capture_output=True, text=True, env={**os.environ, 'OMP_NUM_THREADS': '1', **environment}
    )


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path, CPU, True, Budget(100), ENVIRONMENT, {}, Checker('cpu'))


@pytest.mark.slow
def test_a_dry_run_needs_torch_triton_timm_and_einops_only(root, tmp_path):
    found = run(root, '--dry-run', '--minutes', 60, '--results', tmp_path, script=WITHOUT_EXTRAS)
    assert found.returncode == 0, found.stderr[-6000:]
    assert 'reached      every check against float64 passes: 0 of 3 fail\n' in found.stdout
    assert (
        'reached      every kernel had launches to choose from: 0 of 6 had none, 0 of 3 compilations and 0 targets '
        'failed\n'
    ) in found.stdout
    record = json.loads((tmp_path / 'run.json').read_text())
    assert {part: len(items) for part, items in record['parts'].items()} == {
        'correctness': 3,
        'tuning': 2,
        'results': 6,
    }
    assert [x for items in record['parts'].values() for x in items.values() if x.get('failure')] == []
    table = tables.parse_table(json.loads((tmp_path / 'launches.json').read_text()), (0, 0))
    assert len(table) == 6
    for heading in ('Targets', 'Operator', 'Networks', 'Kernels', 'Launches', 'Checks'):
        assert f'\n## {heading}\n' in (tmp_path / 'report.md').read_text()
    again = run(root, '--dry-run', '--results', tmp_path)
    assert again.returncode == 0, again.stderr[-6000:]
    assert 'correctness: 3 of 3 are known from the last run' in again.stderr
    assert json.loads((tmp_path / 'run.json').read_text()) == record


def test_without_a_gpu_there_is_one_line(root):
    found = run(root, CUDA_VISIBLE_DEVICES='', TRITON_INTERPRET='0')
    assert found.returncode == 2
    assert found.stdout == ''
    assert found.stderr == (
        'error: GPU: expected one that can run the kernels, got no CUDA device '
        "(TRITON_INTERPRET=1 runs the kernels in Triton's interpreter); --dry-run needs none\n"
    )


HANGING = """
import ctypes
from benchmarks.gpu.session import Budget
def report():
    print('reported')
    return 7
lock = ctypes.create_string_buffer(64)
with Budget(1.0).hard_stop(report):
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)  # the second never returns, whatever signals come
"""


@pytest.mark.slow
def test_what_hangs_in_one_call_is_stopped_in_time_for_the_report(root):
    found = run(root, script=HANGING)
    assert (found.returncode, found.stdout, found.stderr) == (7, 'reported\n', '')


def test_an_item_in_which_the_run_ends_is_a_failure(session):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.perform('results', [Item('long', interrupted)])
    assert earlier_parts(session.folder, ENVIRONMENT) == {'results': {'long': {'failure': 'the run ended during it'}}}


def test_a_part_saves_each_item_and_starts_nothing_after_its_time(session):
    items = [Item('first', lambda: {'x': 1}), Item('fails', lambda: {'x': 1 / 0}), Item('last', lambda: {'x': 3})]
    assert session.perform('tuning', items[:2]) == 0
    parts = earlier_parts(session.folder, ENVIRONMENT)
    assert parts == {'tuning': {'first': {'x': 1}, 'fails': {'failure': 'ZeroDivisionError: division by zero'}}}
    assert earlier_parts(session.folder, {**ENVIRONMENT, 'kernels': 'others'}) == {}
    late = Session(session.folder, CPU, True, Budget(0), ENVIRONMENT, parts, session.checker)
    assert late.perform('tuning', items) == 2
    assert 'last' not in late.results('tuning')


def test_a_failure_is_measured_again_after_what_is_new(session):
    order = []
    items = [Item(name, lambda name=name: order.append(name) or {'x': 1}) for name in ('failed', 'known', 'new')]
    session.parts['tuning'] = {'failed': {'failure': 'RuntimeError'}, 'known': {'x': 0}}
    assert session.perform('tuning', items) == 0
    assert order == ['new', 'failed']
    assert session.results('tuning') == {'failed': {'x': 1}, 'known': {'x': 0}, 'new': {'x': 1}}


def test_a_lost_gpu_ends_the_run(tmp_path, monkeypatch):
    def lost(*_):
        raise RuntimeError('CUDA error: an illegal memory access was encountered\nmore')

    monkeypatch.setattr(torch.cuda, 'synchronize', lost)
    session = Session(tmp_path, torch.device('cuda'), True, Budget(100), ENVIRONMENT, {}, Checker('cuda'))
    with pytest.raises(DeviceLostError, match=r'bad: the GPU cannot be used after it .*illegal memory access'):
        session.perform('results', [Item('bad', lost), Item('next', lambda: {})])
    assert list(earlier_parts(tmp_path, ENVIRONMENT)['results']) == ['bad']


class Bad:
    """Takes the place of a call whose kernel hangs or ends the process."""

    def __init__(self, lines):
        self.lines = lines

    def problem(self, device):
        exec(self.lines)


@pytest.mark.slow
def test_a_kernel_that_hangs_or_crashes_spoils_no_other_check(monkeypatch, session):
    call = correctness.gate('any', torch.float16, 16, dry_run=True)
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    failures = [session.checker.check(call, {})['failure']]
    with monkeypatch.context() as short:
        short.setattr(processes, 'CHECK_SECONDS', 0.5)
        failures.append(session.checker.check(Bad('import time; time.sleep(1000)'), {})['failure'])
    for each in (Bad('import os; os._exit(3)'), Bad('1 / 0'), call):
        failures.append(session.checker.check(each, {})['failure'])
    session.checker.close()
    ended, crashed = 'the check did not end within 0.5 s', 'the check ended its process with status 3'
    assert failures == ['', ended, crashed, 'ZeroDivisionError: division by zero', '']


CALL = problems.Call(
    'polarity_attention',
    torch.float32,
    8,
    {'feature_map': 'PowerMap', 'batch': 1, 'queries': 9, 'keys': 9, 'heads': 1},
)


def unwritten(right):
    """A kernel that leaves the first element of its output as it was allocated."""

    def run(inputs):
        output = right(inputs)
        return torch.cat([torch.empty_like(output.flatten()[:1]), output.flatten()[1:]]).view_as(output)

    return run


@pytest.mark.parametrize(
    ('kernels', 'failure'),
    [
        (lambda right: right, ''),
        (lambda right: lambda inputs: 1.1 * right(inputs), 'the error of the output is'),
        (unwritten, 'the error of the output is nan times the budget'),
        (lambda right: lambda inputs: right(inputs) * (1 + 1e-7 * torch.rand(1)), 'two runs differ in the output'),
        (lambda right: lambda inputs: 1 / 0, 'ZeroDivisionError: division by zero'),
    ],
    ids=['right', 'inaccurate', 'unwritten', 'random', 'raises'],
)
def test_a_check_finds_kernels_that_are(kernels, failure, monkeypatch):
    right = problems.FUNCTIONS['polarity_attention']
    wrong = right._replace(kernels=kernels(right.reference))
    monkeypatch.setitem(problems.FUNCTIONS, 'polarity_attention', wrong)
    found = correctness.check(CALL, CPU, 10.0)['failure']
    assert found.startswith(failure) if failure else found == ''


def test_every_dtype_is_checked_with_both_operators():
    calls = correctness.calls(dry_run=False)
    assert len(calls) == len(correctness.DTYPES) * (len(correctness.ATTENTION) + len(correctness.MIX_AND_GATE))
    assert calls['power, 70,000 programs, float32'].arguments['batch'] * 8 == 70_000
    short = calls['rotary, 66,800 tokens, float16'].shortened()
    assert short.problem(CPU).tensors['q'].shape == (1, problems.LENGTH, 1, 64)


@pytest.mark.skipif(INTERPRETED, reason='TRITON_INTERPRET=1 is set: kernels are interpreted, not compiled')
def test_kernels_are_compiled_without_a_gpu_in_another_process():
    compiler = Compiler((9, 0), 1)
    call = correctness.gate('any', torch.float16, 16, dry_run=True)
    warps = {'mix_and_gate': 2, 'mix_and_gate_taps': 4}
    launches = {
        tables.Key(kernel, 'any', 'float16', 16): {'rows': 4, 'columns': 8, 'warps': n} for kernel, n in warps.items()
    }
    binaries = compiler.submit(call, launches).result(timeout=100)
    compiler.close()
    tuned = [x for x in binaries if x.kernel in warps]
    assert {x.kernel: x.warps for x in tuned} == warps
    assert all(16 <= x.registers <= 255 and x.instructions > 100 for x in tuned)


def test_the_estimate_counts_instructions_spills_and_resident_warps():
    hardware = Hardware.of(CPU)
    launch = {'tokens': 32, 'warps': 4, 'stages': 2}
    binary = Binary('state', instructions=1000, registers=128, spilled=0, shared=8192, warps=4)
    assert hardware.resident_programs(binary) == 4
    base = estimate(binary, launch, 32, hardware)
    assert base == 1000 * 32 * 4 / (32 * 32)
    assert estimate(SimpleNamespace(**{**vars(binary), 'spilled': 128}), launch, 32, hardware) == 2 * base
    few = SimpleNamespace(**{**vars(binary), 'registers': 255})
    assert hardware.resident_programs(few) == 2
    assert estimate(few, launch, 32, hardware) == 1.5 * base
    assert estimate(SimpleNamespace(**{**vars(binary), 'shared': 2**18}), launch, 32, hardware) == float('inf')


def test_torch_tells_the_limits_of_a_gpu(monkeypatch):
    names = dir(torch._C._CudaDeviceProperties)
    monkeypatch.setattr(torch.cuda, 'get_device_properties', lambda device: SimpleNamespace(**dict.fromkeys(names, 7)))
    assert Hardware.of(torch.device('cuda')) == Hardware(7, 7, 7, 7)


@pytest.mark.parametrize('block', [16, 32, 64])
def test_launches_to_try_are_those_of_the_kernels(block):
    for found, fields in ((attention_launches(block, False), ATTENTION_FIELDS), (tiles(block, False), TILE_FIELDS)):
        assert len(found) == len({tuple(launch.items()) for launch in found}) > 10
        assert all(set(launch) == set(fields) for launch in found)


def ended(result):
    """A compilation that is done, with an error if `result` is one."""
    future = Future()
    (future.set_exception if isinstance(result, Exception) else future.set_result)(result)
    return future


def test_compilations_that_fail_are_counted_and_shown(session, monkeypatch, capsys):
    target = tuning.targets(dry_run=True)[1]
    binaries = [Binary(key.kernel, 1000, 64, 0, 4096, 4) for key in target.keys]
    launch = target.candidates(dry_run=True)[0]
    monkeypatch.setattr(tuning.Target, 'candidates', lambda self, dry_run: [launch] * 3)
    monkeypatch.setattr(tuning, '_measure', lambda session, target, key, today, others: {'launch': others[0]})
    monkeypatch.setattr(session.checker, 'check', lambda *_: {'failure': ''})
    found = tuning.tune(session, target, [ended(binaries), ended(ValueError('a\nb')), ended(binaries)])
    assert (found['tried'], found['not compiled']) == (3, 1)
    assert {kernel['ranked'] for kernel in found['kernels'].values()} == {2}
    shown = 'any float16 16: 1 of 3 compilations failed, the first by ValueError: a\n'
    assert capsys.readouterr().err.endswith(shown)
    session.parts['tuning'] = {target.name: found}
    assert report.requirements(session)[1].found == '0 of 2 had none, 1 of 3 compilations and 0 targets failed'
    with pytest.raises(RuntimeError, match='none of 3 launches could be compiled; ValueError: a'):
        tuning.tune(session, target, [ended(ValueError('a'))] * 3)
    session.parts['tuning'] = {target.name: {'failure': 'RuntimeError'}}
    assert report.requirements(session)[1].holds is False


@pytest.mark.parametrize('index', [0, 1])
def test_every_kernel_of_a_target_gets_launches_that_its_table_accepts(index):
    target = tuning.targets(dry_run=True)[index]
    for key in target.keys:
        compiled = [(x, [Binary(key.kernel, 1000, 64, 0, 4096, 4)]) for x in target.candidates(dry_run=True)]
        today = tuning.shipped(target, key, CPU)
        ranked = tuning.rank(key, compiled, CPU, 'waves' in today)
        assert len(ranked) == len(compiled)
        for launch in ranked:
            with tables.use_table(tables.LaunchTable({key: launch})):
                assert tuning.shipped(target, key, CPU) == today  # launch.py's own, whatever the table
                find = find_tile if index else partial(find_launch, kind='power')
                assert vars(find(key.kernel, dtype=torch.float16, block=key.block, device=CPU)) == launch


def test_a_run_starts_with_a_cache_of_clean_lines(monkeypatch):
    """What flushes the cache is read, not written: a write would be charged to the run that follows."""
    monkeypatch.setattr(measure.torch.cuda, 'synchronize', lambda: None)
    monkeypatch.setattr(
        measure.torch.cuda, 'Event', lambda **_: SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 2.0)
    )
    other = torch.zeros(4)
    assert measure._event_seconds(lambda: None, other) == 2e-3
    assert other._version == 0


def test_a_copy_is_timed_like_a_kernel(monkeypatch):
    monkeypatch.setitem(measure.COPIED_BYTES, 'cpu', 1000)
    monkeypatch.setattr(measure, 'interleaved_device_seconds', lambda variants, *_: {'copy': Timing(0.5, 0.0)})
    assert measure.copy_bandwidth('cpu', 1) == 4000


@pytest.mark.parametrize(
    ('timings', 'chosen'),
    [
        ({'today': Timing(10.0, 0.1), 'a': Timing(9.0, 0.1), 'b': Timing(9.5, 0.1)}, 'a'),
        ({'today': Timing(10.0, 0.1), 'a': Timing(9.9, 0.0)}, 'today'),
        ({'today': Timing(10.0, 0.1), 'a': Timing(9.0, 1.5)}, 'today'),
    ],
    ids=['faster', 'hardly faster', 'within the spread'],
)
def test_noise_does_not_choose(timings, chosen):
    launches = {name: {'tokens': number} for number, name in enumerate(timings)}
    found = tuning.choose(timings, launches)
    assert found['launch'] == launches[chosen]
    assert found['measured']['chosen']['seconds'] == timings[chosen].seconds
    assert found['measured']['second best']['launch'] != launches[chosen]


def test_the_table_has_what_the_tuning_chose(session):
    target, _ = tuning.targets(dry_run=True)
    launches = {key: tuning.shipped(target, key, CPU) for key in target.keys}
    launches[target.keys[0]]['tokens'] = 128
    session.parts['tuning'] = {
        target.name: {
            'kernels': {str(key): {'launch': launch, 'measured': {}} for key, launch in launches.items()},
            'split': {'launch': {'waves': 1.5}},
        }
    }
    path = session.folder / 'cache' / 'launches.json'
    tuning.write_table(session, path)
    content = json.loads(path.read_text())
    expected = {key: {**launch, 'waves': round(1.5 * launch['waves'])} for key, launch in launches.items()}
    assert tables.parse_table(content, (0, 0)) == expected


def test_targets_are_judged_by_the_worst_result():
    results = {
        'attention, a': {'MB per tensor': 38.5, 'copy %, forward': 80.0, 'copy %, step': 55.0},
        'attention, b': {'MB per tensor': 17.1, 'copy %, forward': 65.0, 'copy %, step': 51.0},
        'attention, small': {'MB per tensor': 3.0, 'copy %, forward': 10.0, 'copy %, step': 10.0},
        'attention, failed': {'failure': 'OutOfMemory'},
        'compiled, a': {
            'tokens': 3136,
            'literal, step': 9.0,
            'published port, step': 'absent',
            'softmax, forward': 3.0,
        },
        'Pola-Swin-T, 800x1344': {'timm, inference': 1.4, 'peak memory, training step': 0.7},
        'a new image size': {'compiled kernels': 0},
    }
    found = [(x.found, x.holds) for x in report.speed(results)]
    unknown = ('not measured', None)
    reached = [('65', False), ('51', True), ('9', True), *[unknown] * 4, ('0.7', False), ('1.4', True), ('0', True)]
    assert found == reached
    assert all(verdict.holds is None for verdict in report.speed({}))


def test_the_report_shows_what_was_measured_and_what_failed(session):
    kernels = {'1 state': {'seconds': 1e-5, 'copy %': 70.0}}
    row = {'operator': 'attention', 'case': 'one', 'MB per tensor': 20.0, 'copy %, step': 40.0, 'kernels': kernels}
    session.parts['results'] = {'attention, one': row, 'attention, two': {'failure': 'OutOfMemory'}}
    required, _ = report.write_report(session)
    assert [verdict.holds for verdict in required] == [None, None]
    text = (session.folder / 'report.md').read_text()
    assert '| attention | one | 1 state | 10.00 | 70.00 |' in text
    assert '| results, attention, two | OutOfMemory |' in text


def test_the_folder_of_results_is_named_by_the_gpu():
    gpu = 'NVIDIA A100/PCIe'
    assert results_folder(gpu).name == 'NVIDIA-A100-PCIe'
