"""The check of the kernels: it finds wrong ones, and times both operators."""

import pytest
import torch

from mmpola.kernels import check
from mmpola.kernels.check import Case
from mmpola.kernels.record import MEASURED_TOKENS


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


@pytest.mark.kernels
@pytest.mark.parametrize('operator', check.CHECKED)
def test_the_kernels_pass(operator):
    """In Triton's interpreter on the CPU, or on a GPU."""
    is_interpreted = not torch.cuda.is_available()
    device = torch.device('cpu' if is_interpreted else 'cuda')
    row = check.row_of(Case(operator, 16, 'float16'))
    for task in check.TASKS:
        row = check.run_task(task, device, row, is_interpreted)
        assert row['failure'] == ''
    assert list(row['speedup']) == [str(tokens) for tokens in MEASURED_TOKENS]
    assert min(row['speedup'].values()) > 0


def test_a_case_that_raises_is_a_row(monkeypatch):
    def fail(*arguments):
        raise ValueError('no such instruction\nof this GPU')

    monkeypatch.setattr(check, 'check', fail)
    row = check.row_of(Case('exp', 32, 'bfloat16'))
    row = check.run_task('check kernels', torch.device('cpu'), row, True)
    assert row['failure'] == 'ValueError: no such instruction'
    assert row['speedup'] == {}


@pytest.mark.parametrize('operator', ['power', 'mix_and_gate'])
def test_a_timed_step_draws_no_numbers(operator, monkeypatch):
    """A GPU would wait for them, and the speedup would be nearly 1."""
    device = torch.device('cpu')
    arguments = check.CHECKED[operator][0]
    sizes = check.sizes_of(arguments, is_tiny=True)
    problem = check.draw(device, torch.float32, 16, arguments | sizes)
    monkeypatch.setattr(torch, 'randn', lambda *size, **options: pytest.fail('drawn'))
    _, plain = check.functions_of(arguments)
    assert check.time_step(plain, problem, device) > 0
