"""Lines about a run whose runner is made up."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from mmengine.config import Config
from mmengine.hooks import EarlyStoppingHook
from mmengine.runner import EpochBasedTrainLoop
from torch import nn

from mmpola.messages import UsageError
from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.export.detector import refuse_other_heads
from mmpola.openmmlab.screen.summary import next_lines, scaling_text, stop_lines, training_lines

CONFIGS = Path(__file__).parents[2] / 'configs'


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
    ('done', 'hooks', 'expected'),
    [
        (12, [EarlyStoppingHook('mAP')], []),
        (4, [], ['stopped      after epoch 4 of 12']),
        (
            4,
            [EarlyStoppingHook('mAP', min_delta=0.5)],
            [
                'stopped      after epoch 4 of 12, as EarlyStoppingHook found mAP no better than '
                '0.2500'
            ],
        ),
    ],
)
def test_a_run_that_a_hook_has_ended_says_so(done, hooks, expected):
    loop = EpochBasedTrainLoop.__new__(EpochBasedTrainLoop)
    for hook in hooks:
        hook.best_score = 0.25
    runner = MagicMock(epoch=done, max_epochs=12, train_loop=loop, hooks=hooks)
    assert stop_lines(runner) == expected


@pytest.mark.parametrize(
    ('interval', 'expected'),
    [
        (100, 'after every 100 steps'),
        (1, 'after every step'),
        (120, 'after every 120 steps and at the end'),
        (500, 'at the end'),
    ],
)
def test_when_a_validation_comes(interval, expected, monkeypatch):
    runner = MagicMock(iter=0, max_iters=300, val_interval=interval, _val_loop=object())
    monkeypatch.setattr('mmpola.openmmlab.screen.summary.optimizer_text', lambda wrapper: 'SGD')
    monkeypatch.setattr('mmpola.openmmlab.screen.summary.scaling_text', lambda runner: '')
    runner.train_dataloader.batch_sampler.batch_size = 4
    steps, *_ = training_lines(runner)
    assert steps == f'steps        300 in all, 4 images each; validation {expected}'


@pytest.mark.parametrize(
    ('scaling', 'expected'),
    [
        (None, ''),
        ({'enable': False, 'base_batch_size': 16}, ''),
        (
            {'enable': True, 'base_batch_size': 16},
            ' (0.002 in the config, scaled by 0.25 for the batch size)',
        ),
    ],
)
def test_a_scaled_rate(scaling, expected):
    cfg = Config(
        {'train_dataloader': {'batch_size': 4}, 'optim_wrapper': {'optimizer': {'lr': 0.002}}}
    )
    assert scaling_text(SimpleNamespace(auto_scale_lr=scaling, cfg=cfg)) == expected
