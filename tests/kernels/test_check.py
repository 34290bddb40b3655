"""The check of the kernels: it finds wrong ones, and times both operators."""

from dataclasses import replace

import pytest
import torch

from mmpola.kernels import check
from mmpola.kernels.check import Case
from mmpola.ops.chunked import polarity_attention_chunked


def unwritten(right):
    """A kernel that leaves the first element of its output as it was allocated."""

    def run(inputs):
        output = right(inputs)
        rest = output.flatten()[1:]
        return torch.cat([torch.empty_like(rest[:1]), rest]).view_as(output)

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
    ],
    ids=['right', 'inaccurate', 'unwritten', 'random'],
)
def test_a_check_finds_kernels_that_are(kernels, failure, monkeypatch):
    monkeypatch.setattr(
        check, 'polarity_attention_triton', kernels(check.polarity_attention_chunked)
    )
    arguments = {**check.POWER, 'batch': 1, 'queries': 9, 'keys': 9}
    device = torch.device('cpu')
    row = check.check(device, 'float32', 8, arguments, allowed=10.0)
    assert row['failure'].startswith(failure) if failure else row['failure'] == ''


SMALL = {'batch': 1, 'heads': 1, 'queries': 20, 'keys': 20, 'grid': (1, 9)}


def small(arguments):
    """The arguments of a problem with sizes for Triton's interpreter."""
    return {name: SMALL.get(name, value) for name, value in arguments.items()}


@pytest.mark.kernels
@pytest.mark.parametrize('operator', check.CHECKED)
def test_the_kernels_pass(operator, monkeypatch):
    """In Triton's interpreter on the CPU, or on a GPU."""
    device = torch.device('cuda')
    if not torch.cuda.is_available():
        device = torch.device('cpu')
        problems = [small(arguments) for arguments in check.CHECKED[operator]]
        monkeypatch.setitem(check.CHECKED, operator, problems)
        monkeypatch.setattr(check, 'TIMED', dict.fromkeys(check.TIMED, SMALL))
        monkeypatch.setattr(check, 'TIMED_CHANNELS', 1)
        monkeypatch.setattr(check, 'median_milliseconds', lambda step: 2.0 if step() else 0.0)
    case = Case(operator, 16, 'float16')
    assert check.check_case(device, case) == {'failure': ''}
    found = check.time_case(device, case)
    assert found.keys() == {'speedup'}
    assert list(found['speedup']) == ['784', '16700']
    assert min(found['speedup'].values()) > 0


def test_the_speedup_is_the_time_of_plain_pytorch_over_that_of_the_kernels(monkeypatch):
    """Numbers are drawn before: a GPU would wait for them, and the speedup would be nearly 1."""
    problem = check.draw(torch.device('cpu'), torch.float16, 16, small(check.CHECKED['exp'][0]))
    drawn = []

    def draw(device, dtype, dim, arguments):
        drawn.append(arguments)
        return replace(problem, kernels=lambda inputs: slow(inputs, 'kernels'))

    def slow(inputs, name):
        steps.append(name)
        return problem.plain(inputs)

    def time(step):
        monkeypatch.setattr(torch, 'randn', lambda *size, **options: pytest.fail('drawn'))
        steps.clear()
        step()
        return 2.0 if steps else 6.0

    steps = []
    monkeypatch.setattr(check, 'draw', draw)
    monkeypatch.setattr(check, 'median_milliseconds', time)
    found = check.time_case(torch.device('cpu'), Case('exp', 64, 'float16'))
    assert found == {'speedup': {'784': 3.0, '16700': 3.0}}
    assert [(x['batch'], x['heads'], x['queries'], x['keys']) for x in drawn] == [
        (32, 4, 784, 784),
        (2, 4, 16700, 16700),
    ]


def test_a_wrong_kernel_is_a_failure_of_its_case(monkeypatch):
    monkeypatch.setattr(
        check, 'polarity_attention_triton', lambda inputs: 1.1 * polarity_attention_chunked(inputs)
    )
    problems = [small(arguments) for arguments in check.CHECKED['power']]
    monkeypatch.setitem(check.CHECKED, 'power', problems)
    found = check.check_case(torch.device('cpu'), Case('power', 16, 'float32'))
    assert found['failure'].startswith('the error of the output is')


def test_a_complete_record_has_every_case_once():
    cases = check.all_cases()
    assert len(cases) == len(set(cases)) == 60
    assert {case.operator for case in cases} == {'power', 'exp', 'rotary', 'mix_and_gate'}
    assert sum(case.head_dim in (32, 64) and case.dtype == 'float16' for case in cases) == 8
