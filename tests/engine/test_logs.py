"""Which rows of a log are read, and how resumed runs are joined."""

import pytest

from mmpola.engine.logs import labels, read_log
from mmpola.messages import UsageError
from tests.helpers.logs import by_epoch, training, write_run


def test_a_resumed_run_is_joined_and_replaces_steps_that_both_logged(tmp_path):
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


def test_a_run_from_scratch_is_not_joined_and_runs_without_training_are_skipped(tmp_path):
    write_run(tmp_path, '1', by_epoch(6))
    write_run(tmp_path, '2', by_epoch(2, factor=3.0))
    write_run(tmp_path, '3', [{'accuracy/top1': 1.0, 'step': 0}])  # a test
    write_run(tmp_path, '4', [])  # killed before its first row
    log = read_log(tmp_path, 'work')
    assert log.runs == 1
    assert log.curve('loss', validation=False) == ([2, 4, 6, 8], [6, 12, 18, 24])


def test_a_run_folder_and_a_file_are_single_runs(tmp_path):
    write_run(tmp_path, '1', by_epoch(2))
    file = write_run(tmp_path, '2', by_epoch(3, first=3))
    assert read_log(tmp_path / '1', 'one').curve('loss', validation=False)[0] == [2, 4, 6, 8]
    assert read_log(file, 'two').curve('loss', validation=False)[0] == [10, 12]


def test_broken_lines_are_counted_and_skipped(tmp_path, capsys):
    rows = [training(1), '{"loss": 2.0, "it', training(2), '7', '{"loss": 1.0}', '', training(3)]
    file = write_run(tmp_path, '1', rows, tail='{"loss": 0.1, "iter": 4, "st')
    assert read_log(tmp_path, 'work').curve('loss', validation=False)[0] == [1, 2, 3]
    assert capsys.readouterr().out == f'{file}: skipped 4 of 8 lines, which are not JSON objects with a step\n'


def test_names_with_hierarchy_and_values_that_are_not_numbers(tmp_path):
    rows = [{'train/loss': 2.0, 'note': 'x', 'best': True, 'iter': 1, 'step': 1}, {'val/coco/bbox_mAP': 0.5, 'step': 1}]
    write_run(tmp_path, '1', rows)
    log = read_log(tmp_path, 'work')
    assert (log.keys(validation=False), log.keys(validation=True)) == (['loss'], ['coco/bbox_mAP'])


def test_labels_are_as_long_as_needed(tmp_path):
    assert labels([tmp_path / 'a', tmp_path / 'b']) == ['a', 'b']
    assert labels([tmp_path / 'x' / 'run', tmp_path / 'y' / 'run']) == ['x/run', 'y/run']
    with pytest.raises(UsageError) as raised:
        labels([tmp_path / 'a', tmp_path / 'b', tmp_path / 'a'])
    assert str(raised.value) == f'{tmp_path}/a, {tmp_path}/b, {tmp_path}/a: the same log twice'
