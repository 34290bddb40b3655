"""The work dir of a run of version 0.1, before its modules moved, resumes, tests and exports."""

import json
import shutil
from argparse import Namespace

import pytest
import torch

from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.messages import UsageError
from mmpola.openmmlab.config.read import load_config
from tests.helpers import ROOT
from tests.helpers.processes import run_script
from tests.helpers.training import write_images

pytestmark = pytest.mark.usefixtures('unformatted_configs')

EARLIER = ROOT / 'tests' / 'golden' / 'earlier'
"""earlier.py, which names classes by the modules they had, and epoch_1.pth of 2 epochs."""


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    """The folder of the earlier run, which is the current one."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / 'colours')
    shutil.copytree(EARLIER, tmp_path / 'work')
    return tmp_path


@pytest.mark.slow
def test_it_goes_on_as_a_run_of_today_does(earlier):
    assert run_script('train', 'work/earlier.py', '--resume', 'work/epoch_1.pth') == 0
    resumed = read_checkpoint(earlier / 'work' / 'epoch_2.pth')
    assert resumed['meta']['epoch'] == 2
    assert run_script('train', 'work/earlier.py', '--work-dir', 'today') == 0
    today = read_checkpoint(earlier / 'today' / 'epoch_2.pth')
    # The first epoch ran on another machine, so the last digits may differ.
    torch.testing.assert_close(resumed['state_dict'], today['state_dict'], rtol=0, atol=1e-5)
    first = read_checkpoint(EARLIER / 'epoch_1.pth')['state_dict']
    moved = (first['head.weight'] - today['state_dict']['head.weight']).abs().max()
    assert moved > 1e-4  # an epoch changes the weights by more than the tolerance


@pytest.mark.slow
def test_it_tests_and_exports(earlier):
    assert run_script('test', 'work/earlier.py', 'work/epoch_1.pth') == 0
    (metrics,) = (earlier / 'work').glob('*/*.json')
    assert 'accuracy/top1' in json.loads(metrics.read_text())
    assert run_script('export', 'work/earlier.py', 'work/epoch_1.pth', 'out.onnx') == 0
    assert (earlier / 'out.onnx').exists()


def test_an_import_of_a_module_that_moved_names_the_new_one(tmp_path):
    path = tmp_path / 'style.py'
    path.write_text('from mmpola.engine.loops import ExactEpochLoop\nloop = ExactEpochLoop\n')
    with pytest.raises(UsageError, match=r'engine\.loops is now mmpola\.openmmlab\.run\.loops$'):
        load_config(Namespace(config=path, cfg_options=None))
