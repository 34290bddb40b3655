"""python -m mmpola.shapes: what it prints, and its exit status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmpola.shapes import dataset
from mmpola.shapes.__main__ import main

ROOT = Path(__file__).parents[2]
SMALL = ['--images', '2', '--val-images', '1', '--size', '64', '64']


def run_module(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-m', 'mmpola.shapes', *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_second_run_has_nothing_to_do(tmp_path):
    out = tmp_path / 'set'
    first, second = run_module(str(out), *SMALL), run_module(str(out), *SMALL)
    assert (first.returncode, first.stderr) == (0, '')
    assert first.stdout.startswith(f'wrote {out} in ')
    assert (second.returncode, second.stderr) == (0, '')
    assert second.stdout == f'{out} already holds this data set: nothing to do\n'
    assert sorted(path.name for path in out.iterdir()) == ['ade', 'classes', 'coco', 'shapes.json']


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--images', '0'], 'images: expected 1 to 500000, got 0'),
        (['--images', 'few'], "argument --images: invalid int value: 'few'"),
        (['--val-images', '-1'], 'val_images: expected 1 to 500000, got -1'),
        (['--size', '32', '160'], 'size: expected width and height from 64 to 2048 pixels, got (32, 160)'),
        (['--size', '64'], 'argument --size: expected 2 arguments'),
        (['--seed', '-1'], 'seed: expected 0 or more, got -1'),
        (['--colour', 'red'], 'unrecognized arguments: --colour red'),
    ],
)
def test_a_bad_argument_prints_one_line_and_exits_with_2(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path / 'set'), *arguments])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f'mmpola.shapes: error: {message}\n'
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_folder_prints_one_line_and_exits_with_2(tmp_path, capsys):
    (tmp_path / 'notes.txt').write_text('mine')
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path), *SMALL, '--force'])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        f'mmpola.shapes: error: {tmp_path} was not written by mmpola.shapes and is not touched: use another folder\n'
    )


def test_a_failing_disk_prints_one_line_and_exits_with_1(tmp_path, capsys):
    (tmp_path / 'file').write_text('')
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path / 'file' / 'set'), *SMALL])
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith('mmpola.shapes: error: [Errno 20] Not a directory: ')
    assert error.count('\n') == 1


def test_ctrl_c_prints_one_line_and_exits_with_130(tmp_path, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(dataset, 'draw_scene', stop)
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path / 'set'), *SMALL])
    assert stopped.value.code == 130
    assert capsys.readouterr().err == 'mmpola.shapes: interrupted, nothing written\n'


def test_without_opencv_one_line_says_what_to_install(tmp_path):
    (tmp_path / 'cv2.py').write_text("raise ModuleNotFoundError(\"No module named 'cv2'\", name='cv2')\n")
    run = run_module('out', PYTHONPATH=str(tmp_path))
    assert run.returncode == 1
    assert run.stderr.count('\n') == 1
    assert 'mmpola.shapes needs OpenCV: pip install opencv-python' in run.stderr
