"""tools/plot_log.py: the figure that it writes, what it prints and what it refuses."""

import matplotlib.image
import numpy as np
import pytest

from mmpola.engine.curves import default_panels
from mmpola.engine.logs import read_log
from tests.helpers import scripts
from tests.helpers.logs import training, write_run


def run(*arguments):
    """Run the script in this process; returns its exit status."""
    return scripts.run('plot_log', *arguments)


def test_the_script_writes_the_picture_and_says_what_it_read(two_logs, tmp_path, capsys):
    write_run(two_logs[1], '2', [training(40, loss=float('nan')), training(50, loss=float('inf'))])
    out = tmp_path / 'curves.png'
    assert run(*two_logs, '--out', out) == 0
    assert capsys.readouterr().out.splitlines() == [
        'slow: steps 2 to 12, one run',
        'fast: steps 10 to 50, 2 runs joined; 2 rows have a NaN or infinite loss',
        f'{out}: 7 panels',
    ]
    pixels = matplotlib.image.imread(out)[..., :3]
    assert pixels.shape == (int(16.0 * 120), int(13.2 * 120), 3)
    blue = np.abs(pixels - np.array([0, 0x72, 0xB2]) / 255).max(axis=2) < 0.02
    assert blue.sum() > 500  # the first log's curves


def test_what_cannot_be_drawn_is_refused_in_one_line(two_logs, tmp_path, capsys):
    (tmp_path / 'empty').mkdir()
    file = write_run(tmp_path / 'begun', '1', [])
    out = tmp_path / 'curves.png'
    trained = 'lr, loss, time, data_time'
    cases = [
        ([tmp_path / 'none', '--out', out], f'{tmp_path}/none: no such work dir or log'),
        (
            [tmp_path / 'empty', '--out', out],
            f'{tmp_path}/empty: expected an MMEngine log (vis_data/*.json or */vis_data/*.json), got none',
        ),
        ([tmp_path / 'begun', '--out', out], f'{tmp_path}/begun: no training step was logged in {file}'),
        ([two_logs[0], '--out', tmp_path / 'no' / 'a.png'], f'{tmp_path}/no: no such folder to write into'),
        (
            [two_logs[0], '--out', out, '--keys', 'loss', 'mAP'],
            f'--keys: expected logged values, got mAP; training logged {trained}; validation accuracy/top1, '
            'accuracy/top5, time',
        ),
    ]
    for arguments, message in cases:
        assert run(*arguments) == 2
        assert capsys.readouterr().err == f'error: {message}\n'
        assert not out.exists()
    assert run(two_logs[0], '--out', tmp_path / 'a.doc') == 2
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
