"""Lines about a run whose runner is made up."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from mmengine.config import Config
from mmengine.runner import EpochBasedTrainLoop
from torch import nn

from mmpola.messages import UsageError
from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.export.detector import refuse_other_heads
from mmpola.openmmlab.screen.summary import next_lines, stop_lines, training_lines

CONFIGS = Path(__file__).parents[3] / 'configs'


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """A run in work_dirs/a run below the working directory, which has saved two checkpoints."""
    monkeypatch.chdir(tmp_path)
    work = tmp_path / 'work_dirs' / 'a run'
    work.mkdir(parents=True)
    (work / 'config.py').touch()
    cfg = SimpleNamespace(filename='configs/config.py', get={'test_dataloader': {'x': 1}}.get)
    known = {'last_ckpt': f'{work}/epoch_2.pth', 'best_ckpt': f'{work}/best.pth'}
    dataset = SimpleNamespace(get_data_info=lambda index: {'img_path': f'data/{index}.jpg'})
    return SimpleNamespace(
        model=nn.Module(),
        work_dir=str(work),
        cfg=cfg,
        message_hub=SimpleNamespace(runtime_info=known),
        train_dataloader=SimpleNamespace(dataset=dataset),
        _val_loop=None,
    )


def test_the_next_commands(runner):
    model = "'work_dirs/a run/config.py' 'work_dirs/a run/best.pth'"
    assert next_lines(runner) == [
        f'next         mmpola test {model}',
        f"             mmpola predict {model} data/0.jpg --out 'work_dirs/a run/predictions'",
        f"             mmpola export {model} 'work_dirs/a run/model.onnx'",
    ]


@pytest.mark.parametrize('name', ['dino_pola_swin_t_1x', 'mask2former_pola_swin_t_50e'])
def test_of_detectors_that_are_not_exported_whole_the_backbone_is_next(name, runner):
    runner.model = build_model(Config.fromfile(f'{CONFIGS}/{name}.py'))
    with pytest.raises(UsageError, match='its backbone with --backbone'):
        refuse_other_heads(runner.model)
    assert next_lines(runner)[-1].endswith(" 'work_dirs/a run/model.onnx' --backbone")


def test_without_pictures_a_test_is_next(runner):
    runner.train_dataloader.dataset = object()
    del runner.message_hub.runtime_info['best_ckpt']
    (line,) = next_lines(runner)
    assert (
        line == "next         mmpola test 'work_dirs/a run/config.py' 'work_dirs/a run/epoch_2.pth'"
    )


def test_without_a_checkpoint_nothing_is_next(runner):
    runner.message_hub.runtime_info.clear()
    assert next_lines(runner) == []


@pytest.mark.parametrize(
    ('done', 'expected'), [(12, []), (4, ['stopped      after epoch 4 of 12'])]
)
def test_a_run_that_a_hook_has_ended_says_so(done, expected):
    loop = EpochBasedTrainLoop.__new__(EpochBasedTrainLoop)
    runner = MagicMock(epoch=done, max_epochs=12, train_loop=loop)
    assert stop_lines(runner) == expected


@pytest.mark.parametrize(
    ('interval', 'expected'),
    [(100, 'after every 100 steps'), (1, 'after every step'), (500, 'after every 300 steps')],
)
def test_the_length_of_a_run_and_its_scaled_rate(interval, expected):
    rates = SimpleNamespace(param_groups=[{'lr': 0.1}, {'initial_lr': 0.0005, 'lr': 0}])
    cfg = Config({'optim_wrapper': {'optimizer': {'lr': 0.002}}})
    runner = MagicMock(iter=0, max_iters=300, val_interval=interval, _val_loop=object(), cfg=cfg)
    runner.optim_wrapper.optimizer = rates
    runner.auto_scale_lr = {'enable': True, 'base_batch_size': 16}
    runner.train_dataloader.batch_sampler.batch_size = 4
    steps, optimizer, _ = training_lines(runner)
    assert steps == f'steps        300 in all, 4 images each; validation {expected}'
    rate = 'learning rate 0.0005 to 0.1 (0.002 in the config, scaled for the batch size)'
    assert optimizer == f'optimizer    SimpleNamespace, {rate}'
    runner.auto_scale_lr = None
    assert training_lines(runner)[1] == f'optimizer    SimpleNamespace, {rate.partition(" (")[0]}'
