"""What the scripts print about the data, and leave out."""

import pytest

from tests.helpers.processes import run_script

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs')]


def test_what_is_printed_is_in_the_log_file_too(tiny_config, tmp_path, capsys):
    options = ['--cfg-options', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=2']
    work = tmp_path / 'work'
    assert run_script('train', tiny_config, '--work-dir', work, *options) == 0
    printed = capsys.readouterr().out
    (log,) = work.glob('*/*.log')
    for text in ('train: CocoDataset: 12 images', '[schedule-length]'):
        assert printed.count(text) == 1
        assert text in log.read_text()


def test_checks_that_are_skipped(tiny_config, capsys):
    skip = ['--skip-checks', 'schedule-length', 'padding']
    assert run_script('check_data', tiny_config, *skip) == 0
    printed = capsys.readouterr().out
    assert '[schedule-length]' not in printed
    assert 'skipped checks: schedule-length, padding' in printed
    assert run_script('check_data', tiny_config, '--skip-checks', 'none-such') == 2
    assert 'got none-such' in capsys.readouterr().err
    skip = 'data_checks.skip=[schedule-length]'
    assert run_script('check_data', tiny_config, '--cfg-options', skip) == 0
    assert 'skipped checks: schedule-length' in capsys.readouterr().out
