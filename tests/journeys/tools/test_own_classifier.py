"""A classifier of one's own classes is evaluated by the classes that its checkpoint names."""

import json
import shutil

import pytest

from tests.helpers.processes import run_script
from tests.helpers.training import run, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.fixture
def trained(colours, tmp_path):
    """Its config and checkpoint, beside a copy of its data in the folder `data`."""
    data = shutil.copytree(colours, tmp_path / 'data')
    cfg = small_config(data, tmp_path / 'training', epochs=2)
    run(cfg)
    cfg.work_dir = str(tmp_path / 'work')
    cfg.dump(tmp_path / 'colours.py')
    return tmp_path / 'colours.py', tmp_path / 'training' / 'epoch_2.pth'


def accuracy(config, checkpoint, work_dir):
    assert run_script('test', config, checkpoint, '--work-dir', work_dir) == 0
    metrics = json.loads(next(work_dir.glob('*/*.json')).read_text())
    return metrics['accuracy/top1'], metrics['accuracy/top2']


def test_its_training_folder_may_be_absent_and_other_classes_are_refused(trained, tmp_path, capsys):
    expected = accuracy(*trained, tmp_path / 'before')
    folder = tmp_path / 'data' / 'train'
    assert str(folder) not in capsys.readouterr().out
    shutil.rmtree(folder)
    assert accuracy(*trained, tmp_path / 'after') == expected
    assert f'{folder}: not found' in capsys.readouterr().out

    (tmp_path / 'data' / 'val' / 'red').rename(tmp_path / 'data' / 'val' / 'pink')
    assert run_script('test', *trained) == 2
    error = capsys.readouterr().err
    assert 'test_dataloader.dataset' in error
    assert 'red' in error and 'pink' in error
