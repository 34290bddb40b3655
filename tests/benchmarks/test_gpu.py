"""`python -m benchmarks.gpu`: a dry run in the interpreter, and the rules by which it measures,
chooses and judges.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from benchmarks import measure
from benchmarks.gpu import candidates, checks, processes, report, tuning
from benchmarks.gpu.candidates import H100, estimate, launches_to_try, limits, resident_programs
from benchmarks.gpu.launches import Binary
from benchmarks.gpu.processes import COMPILING, Checker, compile_call, start_pool
from benchmarks.gpu.results import MMDET_MEMORY
from benchmarks.gpu.session import DeviceLostError, Session, earlier_parts
from benchmarks.measure import Timing
from benchmarks.records import results_folder
from mmpola.ops.triton import tables
from mmpola.ops.triton.backend import IS_INTERPRETED
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
        if name.split('.')[0] in (
            'mmengine', 'mmcv', 'mmdet', 'mmseg', 'rich', 'matplotlib', 'pytest', 'scipy'
        ):  # fmt: skip
            raise ModuleNotFoundError(f'{name} is blocked', name=name)
sys.meta_path.insert(0, Block())
sys.argv = ['benchmarks.gpu', *sys.argv[1:]]
runpy.run_module('benchmarks.gpu', run_name='__main__')
"""


def run(root, *arguments, script='-m benchmarks.gpu', **environment):
    command = [
        sys.executable,
        *(script.split() if script.startswith('-m') else ('-c', script)),
        *map(str, arguments),
    ]
    return subprocess.run(
        command,
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1', **environment},
    )


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path, CPU, True, time.monotonic(), 100, ENVIRONMENT, {}, Checker(CPU))


@pytest.mark.slow
def test_a_dry_run_needs_torch_triton_timm_and_einops_only(root, tmp_path):
    found = run(root, '--dry-run', '--minutes', 60, '--results', tmp_path, script=WITHOUT_EXTRAS)
    assert found.returncode == 0, found.stderr[-6000:]
    assert 'reached      every check against float64 passes: 0 of 3 fail\n' in found.stdout
    assert (
        'reached      every kernel had launches to choose from: '
        '0 of 6 had none, 0 of 4 compilations and 0 targets '
        'failed\n'
    ) in found.stdout
    record = json.loads((tmp_path / 'run.json').read_text())
    assert {part: len(items) for part, items in record['parts'].items()} == {
        'correctness': 3,
        'tuning': 2,
        'results': 7,
    }
    assert [
        x for items in record['parts'].values() for x in items.values() if x.get('failure')
    ] == []
    table = tables.parse_table(json.loads((tmp_path / 'launches.json').read_text()), (0, 0))
    assert len(table) == 6
    headings = ('Targets', 'Operator', 'Networks', 'Kernels', 'Launches', 'Checks')
    for heading in (*headings, 'Depth-wise convolutions outside of mix_and_gate'):
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
from benchmarks.gpu.session import hard_stop
def report():
    print('reported')
    return 7
lock = ctypes.create_string_buffer(64)
hard_stop(1.0, report)
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
        session.perform('results', {'long': interrupted})
    assert earlier_parts(session.folder, ENVIRONMENT) == {
        'results': {'long': {'failure': 'the run ended during it'}}
    }


def test_a_part_saves_each_item_and_starts_nothing_after_its_time(session, capsys):
    items = {'first': lambda: {'x': 1}, 'fails': lambda: {'x': 1 / 0}}
    session.perform('tuning', items)
    parts = earlier_parts(session.folder, ENVIRONMENT)
    assert parts == {
        'tuning': {'first': {'x': 1}, 'fails': {'failure': 'ZeroDivisionError: division by zero'}}
    }
    assert earlier_parts(session.folder, {**ENVIRONMENT, 'kernels': 'others'}) == {}
    late = replace(session, seconds=0)
    late.perform('tuning', {**items, 'last': lambda: {'x': 3}})
    assert 'out of time, 2 are left out' in capsys.readouterr().err
    assert 'last' not in late.results('tuning')


def test_a_failure_is_measured_again_after_what_is_new(session):
    order = []
    items = {
        name: lambda name=name: order.append(name) or {'x': 1}
        for name in ('failed', 'known', 'new')
    }
    session.parts['tuning'] = {'failed': {'failure': 'RuntimeError'}, 'known': {'x': 0}}
    session.perform('tuning', items)
    assert order == ['new', 'failed']
    assert session.results('tuning') == {'failed': {'x': 1}, 'known': {'x': 0}, 'new': {'x': 1}}


def test_an_item_waits_for_its_compilation(session, capsys):
    brief = replace(session, seconds=0.2)
    brief.perform('tuning', {'compiled': lambda: {'x': 1}, 'late': lambda: {'x': 2}},
                  {'compiled': [ended(1)], 'late': [Future()]})  # fmt: skip
    assert brief.results('tuning') == {'compiled': {'x': 1}}
    assert 'out of time, 1 are left out' in capsys.readouterr().err


def test_a_lost_gpu_ends_the_run(session, monkeypatch):
    def lost(*_):
        raise RuntimeError('CUDA error: an illegal memory access was encountered\nmore')

    monkeypatch.setattr(torch.cuda, 'synchronize', lost)
    session = replace(session, device=torch.device('cuda'))
    with pytest.raises(
        DeviceLostError, match=r'bad: the GPU cannot be used after it .*illegal memory access'
    ):
        session.perform('results', {'bad': lost, 'next': dict})
    assert list(earlier_parts(session.folder, ENVIRONMENT)['results']) == ['bad']


class Bad:
    """Takes the place of a call whose kernel hangs or ends the process."""

    def __init__(self, lines):
        self.lines = lines

    def problem(self, device):
        exec(self.lines)


@pytest.mark.slow
def test_a_kernel_that_hangs_or_crashes_spoils_no_other_check(monkeypatch, session):
    call = checks.call_before_timing('any', torch.float16, 16, dry_run=True)
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    failures = [session.checker.check(call, {})['failure']]
    with monkeypatch.context() as short:
        short.setattr(processes, 'CHECK_SECONDS', 0.5)
        failures.append(session.checker.check(Bad('import time; time.sleep(1000)'), {})['failure'])
    for each in (Bad('import os; os._exit(3)'), Bad('1 / 0'), call):
        failures.append(session.checker.check(each, {})['failure'])
    session.checker.close()
    ended, crashed = 'the check did not end within 0.5 s', 'the check ended its process'
    assert failures == ['', ended, crashed, 'ZeroDivisionError: division by zero', '']


CALL = checks.CheckedCall(
    torch.float32,
    8,
    {'feature_map': 'PowerMap', 'batch': 1, 'queries': 9, 'keys': 9, 'heads': 1},
    allowed=10.0,
)


def unwritten(right):
    """A kernel that leaves the first element of its output as it was allocated."""

    def run(inputs):
        output = right(inputs)
        return torch.cat([torch.empty_like(output.flatten()[:1]), output.flatten()[1:]]).view_as(
            output
        )

    return run


@pytest.mark.parametrize(
    ('kernels', 'failure'),
    [
        (lambda right: right, ''),
        (lambda right: lambda inputs: 1.1 * right(inputs), 'the error of the output is'),
        (unwritten, 'the error of the output is nan times the budget'),
        (
            lambda right: lambda inputs: right(inputs) * (1 + 1e-7 * torch.rand(1)),
            'two runs differ in the output',
        ),
        (lambda right: lambda inputs: 1 / 0, 'ZeroDivisionError: division by zero'),
    ],
    ids=['right', 'inaccurate', 'unwritten', 'random', 'raises'],
)
def test_a_check_finds_kernels_that_are(kernels, failure, monkeypatch):
    operator = checks.CHECKED_OPERATORS['polarity_attention']
    replaced = operator._replace(kernels=kernels(operator.reference))
    monkeypatch.setitem(checks.CHECKED_OPERATORS, 'polarity_attention', replaced)
    found = checks.check_call(CALL, CPU)['failure']
    assert found.startswith(failure) if failure else found == ''


def test_every_dtype_is_checked_with_both_operators():
    calls = checks.calls_to_check(dry_run=False)
    assert len(calls) == len(checks.CHECKED_DTYPES) * len(checks.CASES) == 4 * 22
    assert calls['power, 70,000 programs, float32'].arguments['batch'] * 8 == 70_000
    short = calls['rotary, 66,800 tokens, float16'].shortened()
    assert short.problem(CPU).tensors['q'].shape == (1, 64, 1, 64)


@pytest.mark.skipif(
    IS_INTERPRETED, reason='TRITON_INTERPRET=1 is set: kernels are interpreted, not compiled'
)
def test_kernels_are_compiled_without_a_gpu_in_another_process():
    pool = start_pool(1)
    call = checks.call_before_timing('any', torch.float16, 16, dry_run=True)
    warps = {'mix_and_gate': 2, 'mix_and_gate_taps': 4}
    launches = {
        tables.Key(kernel, 'any', 'float16', 16): {'rows': 4, 'columns': 8, 'warps': n}
        for kernel, n in warps.items()
    }
    with mock.patch.dict(os.environ, COMPILING):
        binaries = pool.submit(compile_call, (9, 0), call, launches).result(timeout=100)
    pool.shutdown()
    tuned = [x for x in binaries if x.kernel in warps]
    assert {x.kernel: x.warps for x in tuned} == warps
    assert all(16 <= x.registers <= 255 and x.instructions > 100 for x in tuned)


def test_the_estimate_counts_instructions_spills_and_resident_warps():
    gpu, launch = limits(CPU), {'tokens': 32, 'warps': 4, 'stages': 2}
    binary = Binary('state', instructions=1000, registers=128, spilled=0, shared=8192, warps=4)
    assert resident_programs(binary, gpu) == 4
    base = estimate(binary, launch, 32, gpu)
    assert base == 1000 * 32 * 4 / (32 * 32)
    assert estimate(binary._replace(spilled=128), launch, 32, gpu) == 2 * base
    few = binary._replace(registers=255)
    assert resident_programs(few, gpu) == 2
    assert estimate(few, launch, 32, gpu) == 1.5 * base
    assert estimate(binary._replace(shared=2**18), launch, 32, gpu) == float('inf')


def test_torch_tells_the_limits_of_a_gpu():
    assert set(vars(H100)) <= set(dir(torch._C._CudaDeviceProperties))


@pytest.mark.parametrize('block', [16, 32, 64])
def test_launches_to_try_are_those_of_the_kernels(block):
    for tried, fields in (
        (candidates.ATTENTION_VALUES, ATTENTION_FIELDS),
        (candidates.TILE_VALUES, TILE_FIELDS),
    ):
        found = launches_to_try(tried, block)
        assert len(found) == len({tuple(launch.items()) for launch in found}) > 10
        assert all(set(launch) == set(fields) for launch in found)


def ended(result):
    """A compilation that is done, with an error if `result` is one."""
    future = Future()
    (future.set_exception if isinstance(result, Exception) else future.set_result)(result)
    return future


def test_compilations_that_fail_are_counted_and_shown(session, monkeypatch, capsys):
    target = tuning.tuning_targets(dry_run=True)[1]
    binaries = [Binary(key.kernel, 1000, 64, 0, 4096, 4) for key in target.keys]
    monkeypatch.setattr(tuning.Target, 'candidates', target.candidates[:1] * 3)
    monkeypatch.setattr(
        tuning,
        '_tune_kernel',
        lambda session, target, key, compiled: {
            'ranked': len(compiled),
            'launch': {},
            'timings': {},
        },
    )
    monkeypatch.setattr(session.checker, 'check', lambda *_: {'failure': ''})
    found = tuning.tune(
        session, target, [ended(binaries), ended(ValueError('a\nb')), ended(binaries)]
    )
    assert (found['tried'], found['not compiled']) == (3, 1)
    assert {kernel['ranked'] for kernel in found['kernels'].values()} == {2}
    shown = 'any float16 16: 1 of 3 compilations failed, the first by ValueError: a\n'
    assert capsys.readouterr().err.endswith(shown)
    session.parts['tuning'] = {target.name: found}
    assert (
        report.requirements(session)[1]['worst result']
        == '0 of 2 had none, 1 of 3 compilations and 0 targets failed'
    )
    with pytest.raises(RuntimeError, match='none of 3 launches could be compiled; ValueError: a'):
        tuning.tune(session, target, [ended(ValueError('a'))] * 3)
    session.parts['tuning'] = {target.name: {'failure': 'RuntimeError'}}
    assert report.requirements(session)[1]['result'] == 'not reached'


@pytest.mark.parametrize('index', [0, 1])
def test_every_kernel_of_a_target_gets_launches_that_its_table_accepts(index):
    target = tuning.tuning_targets(dry_run=True)[index]
    for key in target.keys:
        compiled = [(x, [Binary(key.kernel, 1000, 64, 0, 4096, 4)]) for x in target.candidates]
        ranked = tuning.rank(key, compiled, CPU)
        assert len(ranked) == len(compiled)
        for launch in ranked:
            with tables.use_table(tables.LaunchTable({key: launch})):
                find = find_tile if index else partial(find_launch, kind='power')
                assert (
                    vars(find(key.kernel, dtype=torch.float16, block=key.block, device=CPU))
                    == launch
                )


def test_a_run_starts_with_a_cache_of_clean_lines(monkeypatch):
    """What flushes the cache is read, not written: a write would be charged to the run that
    follows.
    """
    monkeypatch.setattr(measure.torch.cuda, 'synchronize', lambda: None)
    monkeypatch.setattr(
        measure.torch.cuda,
        'Event',
        lambda **_: SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 2.0),
    )
    other = torch.zeros(4)
    assert measure._event_seconds(other, lambda: None) == 2e-3
    assert other._version == 0


def test_a_copy_is_timed_like_a_kernel(monkeypatch):
    monkeypatch.setitem(measure.COPIED_BYTES, 'cpu', 1000)
    monkeypatch.setattr(
        measure, 'interleaved_device_seconds', lambda variants, *_: {'copy': Timing(0.5, 0.0)}
    )
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
    assert (found['launch'], found['chosen']) == (launches[chosen], chosen)
    assert set(found['timings']) == set(timings)


def test_the_table_has_what_the_tuning_chose(session):
    target, _ = tuning.tuning_targets(dry_run=True)
    launches = {key: target.today(key, CPU) for key in target.keys}
    launches[target.keys[0]]['tokens'] = 128
    chosen = tuning.changed(launches, {'waves': 1.5})
    expected = {
        key: {**launch, 'waves': round(1.5 * launch['waves'])} for key, launch in launches.items()
    }
    assert chosen == expected
    assert tuning.changed(launches, {}) == launches
    assert {x['waves'] for x in tuning.changed(launches, {'waves': 1000}).values()} == {64}
    session.parts['tuning'] = {
        target.name: {'launches': {str(key): launch for key, launch in chosen.items()}}
    }
    assert tables.parse_table(tuning.table_content(session), (0, 0)) == expected


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
        'Pola-Swin-T, 800x1344': {
            'mmdet, inference': 1.4,
            'mmdet, training step': 1.2,
            MMDET_MEMORY: 0.9,
        },
        'Pola-PVT-T, 800x1344': {'mmdet, training step': 'absent', MMDET_MEMORY: 1.1},
        '--compile, Pola-Swin-T': {'compiled, training step': 0.8},
        'a new image size': {'compiled kernels': 0},
    }
    found = [(x['worst result'], x['result']) for x in report.speed(results)]
    yes, no, unknown = 'reached', 'not reached', ('not measured', 'not measured')
    assert found[:3] == [('65', no), ('51', yes), ('9', yes)]
    assert found[3:6] == [unknown] * 3
    assert found[6:] == [('1.2', no), unknown, ('1.1', no), ('0.8', yes), ('1.4', yes), ('0', yes)]
    assert all(verdict['result'] == 'not measured' for verdict in report.speed({}))


def test_the_report_shows_what_was_measured_and_what_failed(session):
    kernels = {'1 state': {'seconds': 1e-5, 'copy %': 70.0}}
    row = {
        'operator': 'attention',
        'case': 'one',
        'MB per tensor': 20.0,
        'copy %, step': 40.0,
        'kernels': kernels,
    }
    session.parts['results'] = {'attention, one': row, 'attention, two': {'failure': 'OutOfMemory'}}
    required, _ = report.write_report(session)
    assert [verdict['result'] for verdict in required] == ['not measured'] * 2
    text = (session.folder / 'report.md').read_text()
    assert '| attention | one | 1 state | 10.00 | 70.00 |' in text
    assert '| results, attention, two | OutOfMemory |' in text


def test_the_folder_of_results_is_named_by_the_gpu():
    gpu = 'NVIDIA A100/PCIe'
    assert results_folder(gpu).name == 'NVIDIA-A100-PCIe'
