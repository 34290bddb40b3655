"""`python -m benchmarks.gpu`: a dry run in the interpreter, and the rules by which it measures, chooses and judges."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu import correctness, problems, report, tuning
from benchmarks.gpu.budget import Budget, OutOfTime
from benchmarks.gpu.candidates import Hardware, attention_launches, estimate, tiles
from benchmarks.gpu.compiling import Compiler
from benchmarks.gpu.launches import Binary
from benchmarks.gpu.session import Item, Session, earlier_parts
from benchmarks.gpu.targets import verdicts
from benchmarks.measure import Timing
from benchmarks.origin import results_folder
from mmpola.ops.triton import tables
from mmpola.ops.triton.backend import INTERPRETED

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
    return Session(tmp_path, CPU, True, Budget(100), ENVIRONMENT, {})


@pytest.mark.slow
def test_a_dry_run_needs_torch_triton_timm_and_einops_only(root, tmp_path):
    found = run(root, '--dry-run', '--results', tmp_path, script=WITHOUT_EXTRAS)
    assert found.returncode == 0, found.stderr[-6000:]
    assert 'reached      every check against float64 passes: 0 of 6 fail' in found.stdout
    record = json.loads((tmp_path / 'run.json').read_text())
    assert {part: len(items) for part, items in record['parts'].items()} == {
        'correctness': 6,
        'tuning': 3,
        'results': 7,
    }
    assert [x for items in record['parts'].values() for x in items.values() if x.get('failure')] == []
    table = tables.parse_table(json.loads((tmp_path / 'launches.json').read_text()), (0, 0))
    assert len(table.launches) == 7
    assert not table.is_proved
    for heading in ('Targets', 'Operator', 'Networks', 'Kernels', 'Launches', 'Checks'):
        assert f'\n## {heading}\n' in (tmp_path / 'report.md').read_text()
    again = run(root, '--dry-run', '--results', tmp_path)
    assert again.returncode == 0, again.stderr[-6000:]
    assert 'correctness: 6 of 6 are known from the last run' in again.stderr
    assert json.loads((tmp_path / 'run.json').read_text()) == record


def test_without_a_gpu_there_is_one_line(root):
    found = run(root, CUDA_VISIBLE_DEVICES='', TRITON_INTERPRET='0')
    assert found.returncode == 2
    assert found.stdout == ''
    assert found.stderr == (
        'error: GPU: expected one that can run the kernels, got no CUDA device '
        "(TRITON_INTERPRET=1 runs the kernels in Triton's interpreter); --dry-run needs none\n"
    )


def test_what_hangs_is_stopped_in_time_for_the_report(monkeypatch):
    monkeypatch.setattr('benchmarks.gpu.budget.HARD_STOP', 0.1)
    with pytest.raises(OutOfTime), Budget(1.0).hard_stop():
        time.sleep(30)


def test_a_part_saves_each_item_and_starts_nothing_after_its_time(session):
    items = [Item('first', lambda: {'x': 1}), Item('fails', lambda: {'x': 1 / 0}), Item('last', lambda: {'x': 3})]
    assert session.perform('tuning', items[:2]) == 0
    parts = earlier_parts(session.folder, ENVIRONMENT)
    assert parts == {'tuning': {'first': {'x': 1}, 'fails': {'failure': 'ZeroDivisionError: division by zero'}}}
    assert earlier_parts(session.folder, {**ENVIRONMENT, 'kernels': 'others'}) == {}
    late = Session(session.folder, CPU, True, Budget(0), ENVIRONMENT, parts)
    assert late.perform('tuning', items) == 1
    assert 'last' not in late.results('tuning')


CALL = problems.Call(
    'polarity_attention',
    torch.float32,
    8,
    {'feature_map': 'PowerMap', 'batch': 1, 'queries': 9, 'keys': 9, 'heads': 1},
    is_packed=True,
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
    warps = {'mix_and_gate': 2, 'mix_and_gate_gradient': 4}
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
    assert Hardware.of(torch.device('cuda')) == Hardware(7, 7, 7, 7, 7)


@pytest.mark.parametrize('block', [16, 32, 64])
def test_there_are_launches_to_try(block):
    found = [*attention_launches(block, False), *tiles(block, False)]
    assert len(found) == len({tuple(launch.items()) for launch in found}) > 10


@pytest.mark.parametrize(
    ('timings', 'chosen'),
    [
        ({'today': Timing(10.0, 0.1), 'a': Timing(9.0, 0.1), 'b': Timing(9.5, 0.1)}, 'a'),
        ({'today': Timing(10.0, 0.1), 'a': Timing(9.9, 0.0)}, 'today'),
        ({'today': Timing(10.0, 0.1), 'a': Timing(9.0, 1.5)}, 'today'),
        ({'a': Timing(9.0, 1.5), 'b': Timing(9.5, 0.1)}, 'a'),
    ],
    ids=['faster', 'hardly faster', 'within the spread', 'today is rejected'],
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
        target.name: {str(key): {'launch': launch, 'measured': {}} for key, launch in launches.items()},
        f'waves {target.name}': {'launch': {'waves': 1.5}},
    }
    path = session.folder / 'cache' / 'launches.json'
    tuning.write_table(session, path, proved=True)
    content = {**json.loads(path.read_text()), **tables.versions()}
    expected = {key: {**launch, 'waves': round(1.5 * launch['waves'])} for key, launch in launches.items()}
    assert tables.parse_table(content, (0, 0)) == tables.LaunchTable(expected, is_proved=True)


def test_targets_are_judged_by_the_worst_result():
    parts = {
        'correctness': {'power': {'failure': ''}},
        'results': {
            'attention, a': {'MB per tensor': 38.5, 'copy %, forward': 80.0, 'copy %, step': 55.0},
            'attention, b': {'MB per tensor': 17.1, 'copy %, forward': 65.0, 'copy %, step': 51.0},
            'attention, small': {'MB per tensor': 3.0, 'copy %, forward': 10.0, 'copy %, step': 10.0},
            'peers, a': {
                'tokens': 3136,
                'literal, step': 9.0,
                'published port, step': 'absent',
                'softmax, forward': 3.0,
            },
            'Pola-Swin-T, 800x1344': {'timm, inference': 1.4, 'peak memory over literal': 0.7},
            'a new image size': {'compiled kernels': 0},
        },
    }
    found = [(x.found, x.holds) for x in verdicts(parts)]
    unknown = ('not measured', None)
    assert found == [
        ('0 of 1 fail', True),
        ('65', False),
        ('51', True),
        ('9', True),
        *[unknown] * 4,
        ('0.7', False),
        ('1.4', True),
        ('0', True),
    ]
    assert all(verdict.holds is None for verdict in verdicts({}))


def test_the_report_draws_what_was_measured(session):
    kernels = {'1 state': {'seconds': 1e-5, 'copy %': 70.0}}
    row = {'operator': 'attention', 'case': 'one', 'copy %, forward': 60.0, 'copy %, step': 40.0, 'kernels': kernels}
    peers = {'case': 'one', 'literal, step': 9.0, 'copy %, step': 40.0}
    session.parts['results'] = {'attention, one': row, 'peers, one': peers, 'peers, two': {'failure': 'OutOfMemory'}}
    report.write_report(session)
    for stem, text in {'copy': '% of the copy bandwidth', 'peers': 'literal, step'}.items():
        assert text in (session.folder / f'{stem}.svg').read_text()
    text = (session.folder / 'report.md').read_text()
    assert '| attention | one | 1 state | 10.00 | 70.00 |' in text
    assert '- peers, two: OutOfMemory' in text


def test_results_and_launch_table_spell_the_name_of_a_gpu_alike():
    gpu = 'NVIDIA A100/PCIe'
    assert results_folder(gpu).name == 'NVIDIA-A100-PCIe'
    assert tables.user_table_path(gpu).name == 'launches-NVIDIA-A100-PCIe.json'
