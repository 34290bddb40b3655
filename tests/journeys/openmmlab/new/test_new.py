"""From a folder to a trained network by the commands."""

import pytest
from mmengine.config import Config

from tests.helpers import layouts
from tests.helpers.processes import run_script

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.mark.parametrize(
    ('layout', 'best'),
    [
        (layouts.yolo_segments, 'best_coco_segm_mAP_epoch_1.pth'),
        (layouts.class_folders, 'best_accuracy_top1_epoch_1.pth'),
    ],
    ids=['outlines', 'classes'],
)
def test_what_new_writes_trains(layout, best, tmp_path, monkeypatch, capsys):
    layouts.written(layout, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run_script('new', 'animals', '--size', '64') == 0
    said = capsys.readouterr().out
    assert run_script('check_data', 'animals.py') == 0
    for line in capsys.readouterr().out.splitlines():
        assert 'warning:' not in line or line in said
    epochs = Config.fromfile('animals.py').train_cfg.max_epochs
    assert epochs == 100
    options = ['train_cfg.max_epochs=1', 'train_dataloader.num_workers=0']
    assert run_script('train', 'animals.py', '--cfg-options', *options) == 0
    starts_from_detector = 'faster_rcnn_pola_swin_small.safetensors for dog, cat'
    assert (starts_from_detector in capsys.readouterr().out) == ('coco' in best)
    assert (tmp_path / 'work_dirs' / 'animals' / best).exists()
