"""Changes to a config before MMEngine sees it."""

import argparse

import pytest
from mmengine.config import Config

from mmpola.engine import config
from mmpola.messages import UsageError


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_show_dir_reaches_the_hook_of_either_package(scope, tmp_path):
    cfg = Config(
        {'default_scope': scope, 'default_hooks': {'visualization': {'type': 'X'}}, 'visualizer': {'type': 'Y'}}
    )
    config.draw_predictions(cfg, str(tmp_path))
    hook = cfg.default_hooks.visualization
    assert (hook.draw, hook.interval) == (True, 1)
    assert (hook.get('test_out_dir') or cfg.visualizer.save_dir) == str(tmp_path)
    with pytest.raises(UsageError, match='--show-dir'):
        config.draw_predictions(Config({'default_hooks': {}}), str(tmp_path))


def test_pretrained_weights_are_removed_everywhere():
    pretrained = {'type': 'Pretrained', 'checkpoint': 'none.pth'}
    random = {'type': 'Normal', 'std': 0.01}
    heads = [{'conv': {'init_cfg': [dict(pretrained)]}}, {'init_cfg': random}]
    cfg = Config({'model': {'init_cfg': dict(pretrained), 'heads': heads}})
    config.remove_pretrained(cfg.model)
    assert cfg.model.to_dict() == {'init_cfg': None, 'heads': [{'conv': {'init_cfg': None}}, {'init_cfg': random}]}


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ("_base_ = 'absent.py'", r'name\.py: expected a config, got FileNotFoundError: .*absent\.py'),
        ('model = (', r'name\.py: expected a config, got SyntaxError: '),
        ('model = backbone', r"name\.py: expected a config, got NameError: name 'backbone'"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(text, message, tmp_path):
    file = tmp_path / 'name.py'
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        config.load_config(argparse.Namespace(config=str(file)))


def test_scripts_that_only_read_a_config_have_no_work_dir(tmp_path):
    file = tmp_path / 'name.py'
    file.write_text('resume = False')
    reading, training = argparse.ArgumentParser(), argparse.ArgumentParser()
    config.add_options_argument(reading)
    config.add_common_arguments(training)
    for parser, arguments, work_dir in ((reading, [], 'work_dirs/name'), (training, ['--work-dir', 'w'], 'w')):
        cfg = config.load_config(parser.parse_args(arguments, argparse.Namespace(config=str(file))))
        assert (cfg.work_dir, cfg.launcher) == (work_dir, 'none')
    with pytest.raises(SystemExit):
        reading.parse_args(['--work-dir', 'w'])


def test_loaders_without_workers_have_no_persistent_ones(tmp_path, capsys):
    file = tmp_path / 'name.py'
    loader = 'dict(num_workers=2, persistent_workers=True)'
    file.write_text(f'train_dataloader = {loader}\nval_dataloader = {loader}')
    parser = argparse.ArgumentParser()
    config.add_options_argument(parser)
    options = ['--cfg-options', 'train_dataloader.num_workers=0']
    cfg = config.load_config(parser.parse_args(options, argparse.Namespace(config=str(file))))
    assert cfg.train_dataloader.persistent_workers is False
    assert cfg.val_dataloader.persistent_workers is True
    note = 'train_dataloader.persistent_workers: switched off, because num_workers is 0\n'
    assert capsys.readouterr().out == note


@pytest.mark.parametrize(
    ('hook', 'saved'),
    [
        ("dict(type='CheckpointHook', interval=2)", {'type': 'mmpola.AtomicCheckpointHook', 'interval': 2}),
        ('None', None),
        ("dict(type='CheckpointHook', backend_args=dict(backend='s3'))", None),  # not for local files
    ],
)
def test_a_config_of_mmdet_saves_plain_files_too(hook, saved, tmp_path):
    file = tmp_path / 'name.py'
    file.write_text(f'default_hooks = dict(checkpoint={hook})')
    parser = argparse.ArgumentParser()
    config.add_options_argument(parser)
    cfg = config.load_config(parser.parse_args([], argparse.Namespace(config=str(file))))
    assert cfg.default_hooks.checkpoint == (saved or Config.fromfile(file).default_hooks.checkpoint)
