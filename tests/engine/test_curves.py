"""plot_log.py and training_log.py: which rows are read and joined, which curves are drawn, what is refused."""

import json

import matplotlib.image
import numpy as np
import pytest

from mmpola.engine.curves import PARTS, asked_panels, default_panels, draw
from mmpola.engine.logs import labels, read_log
from mmpola.messages import UsageError
from tests.helpers import scripts


def training(step, epoch=None, **values):
    row = {'lr': 0.1 / step, 'loss': 10.0 / step, 'time': 0.5, 'data_time': 0.1, 'iter': step, 'step': step, **values}
    return row if epoch is None else {'epoch': epoch, **row}


def write_run(work, name, rows, tail=''):
    """A run's folder as MMEngine lays it out; returns its scalars."""
    folder = work / name / 'vis_data'
    folder.mkdir(parents=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / 'scalars.json').write_text('\n'.join(lines) + '\n' + tail)
    (folder / f'{name}.json').write_text('\n'.join(lines))  # MMEngine writes the same rows a second time
    return folder / 'scalars.json'


def run(*arguments):
    """Draw in this process: the script's exit status."""
    return scripts.run('plot_log', *arguments)


def by_epoch(epochs, first=1, factor=1.0, per_epoch=4):
    """Rows at every second step of some epochs, each with its validation."""
    rows = []
    for epoch in range(first, epochs + 1):
        start = (epoch - 1) * per_epoch
        rows += [training(start + step, epoch, loss=factor * (start + step)) for step in (2, 4)]
        rows.append({'accuracy/top1': factor * epoch, 'accuracy/top5': 50.0, 'time': 0.2, 'step': epoch})
    return rows


def test_a_resumed_run_is_joined_and_its_steps_count_where_both_logged(tmp_path):
    write_run(tmp_path, '20260101_000000', by_epoch(4))
    write_run(tmp_path, '20260102_000000', by_epoch(5, first=3, factor=-1.0))
    log = read_log(tmp_path, 'work')
    assert (log.runs, log.unit) == (2, 'epoch')
    assert log.curve('loss', validation=False) == (
        [2, 4, 6, 8, 10, 12, 14, 16, 18, 20],
        [2, 4, 6, 8, -10, -12, -14, -16, -18, -20],
    )
    assert log.curve('accuracy/top1', validation=True) == ([1, 2, 3, 4, 5], [1, 2, -3, -4, -5])


def test_steps_of_iteration_based_runs_are_joined_and_validation_counts_steps(tmp_path):
    first = [training(step) for step in (50, 100, 150, 200)]
    write_run(tmp_path, '1', [*first[:2], {'mIoU': 1.0, 'step': 100}, *first[2:], {'mIoU': 2.0, 'step': 200}])
    write_run(tmp_path, '2', [training(150, loss=-1.0), training(200, loss=-2.0), {'mIoU': 3.0, 'step': 200}])
    log = read_log(tmp_path, 'work')
    assert log.unit == 'step'
    assert log.curve('loss', validation=False) == ([50, 100, 150, 200], [0.2, 0.1, -1.0, -2.0])
    assert log.curve('mIoU', validation=True) == ([100, 200], [1.0, 3.0])


def test_a_single_row_after_resuming_is_joined_too(tmp_path):
    write_run(tmp_path, '1', [training(step) for step in (50, 100, 150)])
    write_run(tmp_path, '2', [training(150, loss=-1.0)])
    assert read_log(tmp_path, 'work').curve('loss', validation=False)[0] == [50, 100, 150]


def test_a_run_that_begins_in_a_later_epoch_was_resumed(tmp_path):
    write_run(tmp_path, '1', [training(4, epoch=1)])
    write_run(tmp_path, '2', [training(8, epoch=2)])
    assert read_log(tmp_path, 'work').curve('loss', validation=False)[0] == [4, 8]


def test_a_run_from_scratch_stands_alone_and_runs_without_training_are_passed_over(tmp_path):
    write_run(tmp_path, '1', by_epoch(6))
    write_run(tmp_path, '2', by_epoch(2, factor=3.0))
    write_run(tmp_path, '3', [{'accuracy/top1': 1.0, 'step': 0}])  # a test
    write_run(tmp_path, '4', [])  # killed before its first row
    log = read_log(tmp_path, 'work')
    assert log.runs == 1
    assert log.curve('loss', validation=False) == ([2, 4, 6, 8], [6, 12, 18, 24])


def test_a_run_folder_and_a_file_stand_for_themselves(tmp_path):
    write_run(tmp_path, '1', by_epoch(2))
    file = write_run(tmp_path, '2', by_epoch(3, first=3))
    assert read_log(tmp_path / '1', 'one').curve('loss', validation=False)[0] == [2, 4, 6, 8]
    assert read_log(file, 'two').curve('loss', validation=False)[0] == [10, 12]


def test_broken_lines_are_counted_and_skipped(tmp_path, capsys):
    rows = [training(1), '{"loss": 2.0, "it', training(2), '7', '{"loss": 1.0}', '', training(3)]
    file = write_run(tmp_path, '1', rows, tail='{"loss": 0.1, "iter": 4, "st')
    assert read_log(tmp_path, 'work').curve('loss', validation=False)[0] == [1, 2, 3]
    assert capsys.readouterr().out == f'{file}: 4 of 8 lines are no JSON row with a step; skipped\n'


def test_names_with_hierarchy_and_values_that_are_no_numbers(tmp_path):
    rows = [{'train/loss': 2.0, 'note': 'x', 'best': True, 'iter': 1, 'step': 1}, {'val/coco/bbox_mAP': 0.5, 'step': 1}]
    write_run(tmp_path, '1', rows)
    log = read_log(tmp_path, 'work')
    assert (log.keys(validation=False), log.keys(validation=True)) == (['loss'], ['coco/bbox_mAP'])


def test_labels_are_as_long_as_it_takes(tmp_path):
    assert labels([tmp_path / 'a', tmp_path / 'b']) == ['a', 'b']
    assert labels([tmp_path / 'x' / 'run', tmp_path / 'y' / 'run']) == ['x/run', 'y/run']
    with pytest.raises(UsageError) as raised:
        labels([tmp_path / 'a', tmp_path / 'b', tmp_path / 'a'])
    assert str(raised.value) == f'{tmp_path}/a, {tmp_path}/b, {tmp_path}/a: the same log twice'


def panels_of(panels):
    return [(panel.title, panel.value, panel.position, [curve.key for curve in panel.curves]) for panel in panels]


def test_one_log_shows_the_largest_parts_of_its_loss_and_the_main_metrics(tmp_path):
    parts = {f's{index}.loss_cls': float(index) for index in range(PARTS + 2)}
    metrics = {'coco/bbox_mAP': 0.3, 'coco/bbox_mAP_50': 0.5, 'coco/bbox_mAP_s': -1.0, 'coco/segm_mAP': 0.2, 'PQ': 0.1}
    rows = [training(step, 1, **parts, base_lr=0.1, images_per_second=80.0) for step in (1, 2)]
    rows[1]['data_share'] = 0.25  # mmpola's throughput hook logs it; else MMEngine's times give it
    write_run(tmp_path, '1', [*rows, {**metrics, 'time': 0.1, 'data_time': 0.0, 'step': 1}])
    panels = default_panels([read_log(tmp_path, 'work')])
    largest = [f's{index}.loss_cls' for index in range(PARTS + 1, 1, -1)]
    step = 'training step'
    assert panels_of(panels) == [
        ('Training loss and its largest parts', 'loss', step, ['loss', *largest]),
        ('Learning rate', 'first parameter group', step, ['lr']),  # base_lr is not scaled by auto_scale_lr
        ('Validation: coco', 'value', 'epoch', ['coco/bbox_mAP', 'coco/segm_mAP']),
        ('Validation', 'value', 'epoch', ['PQ']),
        ('Time per step', 'seconds', step, ['time']),
        ('Waiting for data', '% of the step', step, ['data share']),
        ('Images per second', '1 / s', step, ['images_per_second']),
    ]
    assert panels[5].curves[0].points == ([1, 2], [20.0, 25.0])


@pytest.fixture
def two(tmp_path):
    """Work dirs of a run by epochs and of one by steps."""
    write_run(tmp_path / 'slow', '1', by_epoch(3))
    rows = [training(step, loss=1.0 / step) for step in (10, 20, 30)]
    write_run(tmp_path / 'fast', '1', [*rows, {'mIoU': 2.0, 'accuracy/top1': 3.0, 'step': 30}])
    return [tmp_path / 'slow', tmp_path / 'fast']


def test_several_logs_share_each_panel_but_epochs_and_steps_do_not_mix(two):
    logs = [read_log(path, path.name) for path in two]
    panels = default_panels(logs)
    assert panels_of(panels)[0] == ('Training loss', 'loss', 'training step', ['loss', 'loss'])
    assert [(panel.title, panel.position) for panel in panels if panel.title.startswith('Validation')] == [
        ('Validation: accuracy', 'epoch'),
        ('Validation', 'step'),
        ('Validation: accuracy', 'step'),
    ]
    assert [curve.log for curve in panels[0].curves] == [0, 1]


def test_asked_keys_have_a_panel_each(two):
    logs = [read_log(path, path.name) for path in two]
    assert panels_of(asked_panels(logs, ['loss', 'accuracy/top1', 'time'])) == [
        ('Training: loss', 'loss', 'training step', ['loss', 'loss']),
        ('Validation: accuracy/top1', 'top1', 'epoch', ['accuracy/top1']),
        ('Validation: accuracy/top1', 'top1', 'step', ['accuracy/top1']),
        ('Training: time', 'seconds', 'training step', ['time', 'time']),
        ('Validation: time', 'seconds', 'epoch', ['time']),
    ]


def test_the_figure_has_titles_units_labels_and_the_curves(two):
    logs = [read_log(path, path.name) for path in two]
    figure = draw(default_panels(logs), ['slow', 'fast'])
    loss, rate = figure.axes[:2]
    assert (loss.get_title(), loss.get_xlabel(), loss.get_ylabel()) == ('Training loss', 'training step', 'loss')
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ['slow', 'fast']
    assert rate.get_ylim()[0] == 0
    drawn = loss.get_lines()[1]
    assert (drawn.get_xdata().tolist(), drawn.get_ydata().tolist()) == ([10, 20, 30], [0.1, 0.05, 1 / 30])
    accuracy = next(axes for axes in figure.axes if axes.get_title() == 'Validation: accuracy')
    texts = [text.get_text() for text in accuracy.get_legend().get_texts()]
    assert texts == ['slow: accuracy/top1', 'slow: accuracy/top5']
    styles = {(line.get_color(), line.get_linestyle()) for line in accuracy.get_lines()}
    assert len({colour for colour, _ in styles}) == 1
    assert len({dash for _, dash in styles}) == 2


def test_of_an_odd_number_the_first_panel_takes_a_row(two):
    logs = [read_log(two[0], 'slow')]
    figure = draw(asked_panels(logs, ['loss', 'lr', 'accuracy/top1']), ['slow'])
    spans = [(axes.get_subplotspec().rowspan, axes.get_subplotspec().colspan) for axes in figure.axes]
    assert spans == [(range(0, 1), range(0, 2)), (range(1, 2), range(0, 1)), (range(1, 2), range(1, 2))]
    assert figure.get_suptitle() == 'slow'


def test_the_script_writes_the_picture_and_says_what_it_read(two, tmp_path, capsys):
    write_run(two[1], '2', [training(40, loss=float('nan')), training(50, loss=float('inf'))])
    out = tmp_path / 'curves.png'
    assert run(*two, '--out', out) == 0
    assert capsys.readouterr().out.splitlines() == [
        'slow: steps 2 to 12, one run',
        'fast: steps 10 to 50, 2 runs joined; 2 rows have a NaN or infinite loss',
        f'{out}: 7 panels',
    ]
    pixels = matplotlib.image.imread(out)[..., :3]
    assert pixels.shape == (int(16.0 * 120), int(13.2 * 120), 3)
    blue = np.abs(pixels - np.array([0, 0x72, 0xB2]) / 255).max(axis=2) < 0.02
    assert blue.sum() > 500  # the first log's curves


def test_what_cannot_be_drawn_is_refused_in_one_line(two, tmp_path, capsys):
    (tmp_path / 'empty').mkdir()
    file = write_run(tmp_path / 'begun', '1', [])
    out = tmp_path / 'curves.png'
    trained = 'lr, loss, time, data_time'
    cases = [
        ([tmp_path / 'none', '--out', out], f'{tmp_path}/none: no such work dir or log'),
        (
            [tmp_path / 'empty', '--out', out],
            f'{tmp_path}/empty: no MMEngine log in it (looked for vis_data/*.json and */vis_data/*.json)',
        ),
        ([tmp_path / 'begun', '--out', out], f'{tmp_path}/begun: no training step was logged in {file}'),
        ([two[0], '--out', tmp_path / 'no' / 'a.png'], f'{tmp_path}/no: no such folder to write into'),
        (
            [two[0], '--out', out, '--keys', 'loss', 'mAP'],
            f'--keys: no log has mAP; training logged {trained}; validation accuracy/top1, accuracy/top5, time',
        ),
    ]
    for arguments, message in cases:
        assert run(*arguments) == 2
        assert capsys.readouterr().err == f'error: {message}\n'
        assert not out.exists()
    assert run(two[0], '--out', tmp_path / 'a.doc') == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/a.doc: cannot be written (Format 'doc' is not ")


@pytest.mark.slow
def test_a_real_run_is_drawn(tiny_config, run_tool, tmp_path):
    work, out = tmp_path / 'work', tmp_path / 'curves.png'
    options = ['--cfg-options', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1']
    run_tool('train.py', tiny_config, '--work-dir', work, *options)
    assert run_tool('plot_log.py', work, '--out', out).stdout == f'work: steps 1 to 6, one run\n{out}: 5 panels\n'
    panels = default_panels([read_log(work, 'work')])
    assert [len(panel.curves) for panel in panels] == [6, 1, 2, 1, 1]
    total, *parts = (curve.points[1] for curve in panels[0].curves)
    assert sum(part[0] for part in parts) == pytest.approx(total[0], rel=1e-5)
