"""A training run logs what its checks find when it is built."""

import pytest

from tests.helpers.training import run, small_config


@pytest.mark.slow
def test_a_run_logs_that_it_ends_within_its_warm_up(colours, tmp_path, warned):
    cfg = small_config(colours, tmp_path, epochs=2)
    cfg.param_scheduler = [{'type': 'LinearLR', 'by_epoch': False, 'end': 100}]
    run(cfg)
    assert any(line.endswith('[warm-up]') for line in warned)
    warned.clear()
    cfg.work_dir = str(tmp_path / 'skipped')
    cfg.data_checks = dict(skip=['warm-up'])
    run(cfg)
    assert not any(line.endswith('[warm-up]') for line in warned)
