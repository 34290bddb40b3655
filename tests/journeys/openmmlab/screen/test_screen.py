"""What a run shows on a terminal and writes to a file."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios

import pytest

from mmpola.openmmlab.screen.screen import has_size
from tests.helpers.processes import environment, run_script

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs', 'drawn_curves')]

START = ['model', 'device', 'log', 'steps', 'optimizer', 'pictures', 'first batch', 'first step']
"""How the lines of the summary begin."""

OF_VALIDATION = (
    'Evaluating bbox',
    'Accumulating evaluation results',
    'mAP_copypaste',
    'Epoch(val)',
)
"""What mmdet, pycocotools and MMEngine write of a validation."""

ONLY_IN_THE_LOG_FILE = ('System environment:', 'Config:', 'Hooks will be executed', 'index created')


@pytest.fixture
def train_in_a_terminal(root):
    """A function that runs tools/train.py in a terminal of 120 columns; it returns the output."""

    def train(*arguments):
        command = [sys.executable, str(root / 'tools' / 'train.py'), *map(str, arguments)]
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(root)
            os.execve(sys.executable, command, environment())
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 120, 0, 0))
        output = b''
        while True:
            try:
                part = os.read(terminal, 4096)
            except OSError:  # the process has ended
                break
            if not part:
                break
            output += part
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, output.decode()
        return output.decode()

    return train


def summary(lines):
    return [name for name in START if sum(line.startswith(f'{name}  ') for line in lines) == 1]


def after_the_data(lines):
    """Return the lines after those about the data sets, whose number depends on the classes."""
    (begin,) = (number for number, line in enumerate(lines) if line.startswith('model  '))
    return lines[begin:]


def text_of_log(work):
    (path,) = work.glob('*/*.log')
    return path.read_text()


@pytest.mark.parametrize(
    ('fixture', 'option', 'expected'),
    [
        ('tiny_config', 'train_cfg.max_epochs=1', '6 an epoch, 1 epoch, 6 in all, 2 images each'),
        ('tiny_segmentation', 'train_cfg.max_iters=2', '2 in all, 4 images each'),
    ],
)
def test_a_file_gets_a_summary_and_the_lines_of_mmengine(
    fixture, option, expected, request, tmp_path, capsys
):
    config = request.getfixturevalue(fixture)
    work = tmp_path / 'work'
    options = ('--cfg-options', option, 'train_cfg.val_interval=1')
    assert run_script('train', config, '--work-dir', work, *options) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    (first,) = (n for n, line in enumerate(lines) if re.search(r'(Epoch|Iter)\(train\).*1/', line))
    shown = after_the_data(lines[:first])
    start = [line for line in shown if 'WARNING' not in line]
    assert len(start) == len(START), '\n'.join(start)
    assert summary(start) == START
    assert any(line.startswith('train') for line in lines)
    (steps,) = (line for line in start if line.startswith('steps'))
    assert expected in steps
    log = text_of_log(work)
    for text in ONLY_IN_THE_LOG_FILE[:3]:
        assert text in log
        assert text not in output.out
    for line in start:
        assert line in log
    assert '%|' not in output.out + output.err
    assert any(line.startswith('test: read at ') for line in lines)
    commands = [line.partition('mmpola ')[2].split()[0] for line in lines[-3:]]
    assert commands == ['test', 'predict', 'export']
    metric = {'tiny_config': 'coco/bbox_mAP: ', 'tiny_segmentation': 'mIoU: '}[fixture]
    of_metrics = [line for line in lines if '(val)' in line]
    assert of_metrics
    assert all(metric in line and 'eta' not in line for line in of_metrics)
    assert 'Exp name' not in output.out
    assert 'Saving checkpoint' not in output.out
    for picture in ('first_batch.jpg', 'curves.png'):
        assert (work / picture).exists()


def test_a_terminal_gets_bars_and_the_log_file_everything(
    tiny_config, tmp_path, train_in_a_terminal
):
    work = tmp_path / 'work'
    options = (
        'train_cfg.max_epochs=2',
        'train_cfg.val_interval=1',
        'default_hooks.checkpoint.save_best=coco/bbox_mAP',
        'val_evaluator.metric=bbox',
        'val_evaluator.classwise=True',
    )
    output = train_in_a_terminal(tiny_config, '--work-dir', work, '--cfg-options', *options)
    lines = re.split(r'[\r\n]+', output)
    assert summary(lines) == START
    bars = [line for line in lines if line.startswith('epoch 2/2: ')]
    assert re.search(r'\d/6 .* loss \d+\.\d+, run ends in 0:00:0\d\]', bars[-1])
    (number,) = (number for number, line in enumerate(lines) if line.startswith('  epoch  '))
    classes = ['circle', 'square', 'triangle', 'star', 'ring', 'cross']
    metrics = ['bbox_mAP', 'bbox_mAP_50', *classes]
    heading = ['epoch', 'loss', *metrics, 'best', 'minutes']
    assert lines[number].split() == heading
    rows = [line.split() for line in lines[number:] if re.match(r' {6}[12]  ', line)]
    assert [row[0] for row in rows] == ['1', '2']
    assert len(rows[0]) == len(heading)  # the first is the best
    assert all(re.fullmatch(r'\d\.\d{4}|nan', text) for text in rows[0][2:10])
    assert any(line.startswith('validation: ') for line in lines)
    assert 'Epoch(train)' not in output
    for text in (*OF_VALIDATION, 'Exp name', 'Saving checkpoint'):
        assert text not in output
    assert f'last         {work}/epoch_2.pth' in lines
    best = [line for line in lines if line.startswith(f'best         {work}/best_coco_bbox_mAP_')]
    assert re.search(r'\.pth \([\d.]+ in validation\)$', best[-1])
    log = text_of_log(work)
    assert log.count('Epoch(train)') == 12
    for text in (*OF_VALIDATION, 'Exp name', 'Saving checkpoint'):
        assert text in log
    assert lines[number] in log
    for text in ONLY_IN_THE_LOG_FILE[:3]:
        assert text in log
        assert text not in output


def test_a_terminal_without_a_size_gets_no_bars():
    controller, terminal = pty.openpty()
    with open(terminal, 'w') as stream:
        assert not has_size(stream)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 120, 0, 0))
        assert has_size(stream)
    os.close(controller)


def test_an_evaluation_begins_with_a_summary_too(tiny_config, tmp_path, write_checkpoint, capsys):
    checkpoint = write_checkpoint(tiny_config, tmp_path / 'weights.pth')
    work = tmp_path / 'work'
    settings = ('test_evaluator.classwise=True', 'default_hooks.logger.interval=10')
    options = ('--work-dir', work, '--cfg-options', *settings)
    assert run_script('test', tiny_config, checkpoint, *options) == 0
    lines = capsys.readouterr().out.splitlines()
    (first,) = (n for n, line in enumerate(lines) if 'Evaluating bbox' in line)
    start = after_the_data(lines[:first])
    assert len(start) <= 5
    assert summary(start) == ['model', 'device', 'log', 'first batch']
    assert 'coco/bbox_circle_precision: ' in lines[-2]
    assert lines[-1].startswith('costs most   of ')
    for text in ONLY_IN_THE_LOG_FILE:
        assert text in text_of_log(work)
