"""Changes to a config before MMEngine sees it: `--cfg-options`, hooks, loaders."""

import argparse

import pytest
from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper

from mmpola.messages import UsageError
from mmpola.openmmlab.config import read as config
from tests.helpers.refusals import refusal


def load(folder, text, *arguments, **others):
    """Write name.py with this text and read it with these options, and others that a script has."""
    file = folder / 'name.py'
    file.write_text(text)
    parser = argparse.ArgumentParser()
    config.add_options_argument(parser)
    given = argparse.Namespace(config=str(file), **others)
    return config.load_config(parser.parse_args(arguments, given))


def test_what_show_dir_needs(monkeypatch):
    for settings in ({'default_hooks': {}}, {'default_hooks': {'visualization': {'type': 'X'}}}):
        message = refusal(config.draw_predictions, Config({**settings, 'launcher': 'none'}), 'out')
        assert message.startswith('--show-dir: the config has no ')
    monkeypatch.setenv('WORLD_SIZE', '2')
    message = refusal(config.draw_predictions, Config({'launcher': 'pytorch'}), 'out')
    assert message.startswith('--show-dir: expected one process, ')


@pytest.mark.parametrize(
    ('text', 'error'),
    [
        ("_base_ = 'absent.py'", 'FileNotFoundError'),
        ('model = (', 'SyntaxError'),
        ('model = backbone', "NameError: name 'backbone'"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(text, error, tmp_path):
    message = refusal(load, tmp_path, text)
    assert message.startswith(f'{tmp_path}/name.py: {error}')
    assert '\n' not in message


def test_bases_that_meet_again_are_read(tmp_path):
    (tmp_path / 'root.py').write_text('')
    (tmp_path / 'left.py').write_text("_base_ = 'root.py'\na = 1")
    (tmp_path / 'right.py').write_text("_base_ = 'root.py'\nb = 2")
    cfg = load(tmp_path, "_base_ = ['left.py', 'right.py']")
    assert (cfg.a, cfg.b) == (1, 2)


def test_the_work_dir_is_that_of_the_argument_or_the_config_or_has_its_name(tmp_path):
    cfg = load(tmp_path, '')
    assert (cfg.work_dir, cfg.launcher) == ('work_dirs/name', 'none')
    cfg = load(tmp_path, "work_dir = 'own'", work_dir=None, launcher='slurm')
    assert (cfg.work_dir, cfg.launcher) == ('own', 'slurm')
    assert load(tmp_path, "work_dir = 'own'", work_dir='given').work_dir == 'given'


def test_loaders_without_workers_have_no_persistent_ones(tmp_path):
    loader = 'dict(num_workers=2, persistent_workers=True)'
    text = f'train_dataloader = {loader}\nval_dataloader = {loader}'
    cfg = load(tmp_path, text, '--cfg-options', 'train_dataloader.num_workers=0')
    assert cfg.train_dataloader.persistent_workers is False
    assert cfg.val_dataloader.persistent_workers is True


def parsed(*entries):
    parser = argparse.ArgumentParser()
    config.add_options_argument(parser)
    return parser.parse_args(['--cfg-options', *entries]).cfg_options


@pytest.fixture
def cfg():
    """A config with a backbone, a pipeline and a plain dict."""
    backbone = {
        'type': 'mmpola.PolaSwin',
        'arch': 'tiny',
        'init_cfg': {'type': 'Pretrained', 'checkpoint': 'a.pth'},
    }
    pipeline = [{'type': 'Load'}, {'type': 'Resize', 'scale': (1, 2)}]
    plain = {'auto_scale_lr': {'base_batch_size': 16}, 'test_cfg': {'score_thr': 0.05}}
    return Config({'model': {'backbone': backbone}, 'pipeline': pipeline, **plain})


def test_values(cfg):
    options = parsed(
        'model.backbone.arch._delete_=True',
        'model.backbone.arch.depths=(1,1)',
        'model.backbone.drop_path_rate=1e-3',
        'model.backbone.init_cfg=None',
        'pipeline.1.scale=(3,4)',
        'auto_scale_lr.enable=True',
        'load_from=x=y',
    )
    config.apply_options(cfg, options)
    assert cfg.to_dict() == {
        'model': {
            'backbone': {
                'type': 'mmpola.PolaSwin',
                'arch': {'depths': (1, 1)},
                'init_cfg': None,
                'drop_path_rate': 1e-3,
            }
        },
        'pipeline': [{'type': 'Load'}, {'type': 'Resize', 'scale': (3, 4)}],
        'auto_scale_lr': {'base_batch_size': 16, 'enable': True},
        'test_cfg': {'score_thr': 0.05},
        'load_from': 'x=y',
    }


@pytest.mark.parametrize('value', ['none', 'null'])
def test_text_that_is_meant_as_none_is_refused(value, cfg):
    message = refusal(config.apply_options, cfg, parsed(f'load_from={value}'))
    assert message == f'--cfg-options: expected load_from=None, got load_from={value}'


@pytest.mark.parametrize('entry', ['pipeline.9.scale=1', 'pipeline.x.scale=1'])
def test_an_index_that_the_list_does_not_have_is_refused(entry, cfg):
    message = refusal(config.apply_options, cfg, parsed(entry))
    assert message.startswith(f'--cfg-options: {entry.partition("=")[0]}: ')
    assert '\n' not in message


def test_a_variable_of_the_file_is_named(tmp_path, capsys):
    text = "root = 'a'\ntrain_dataloader = dict(dataset=dict(root=root))\n"
    options = ('root=b', 'train_dataloader.dataset.type=C')
    cfg = load(tmp_path, text, '--cfg-options', *options)
    assert (cfg.root, cfg.train_dataloader.dataset.root) == ('b', 'a')
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith('--cfg-options: root: ')


@pytest.mark.parametrize('key', ['train_cgf.max_epochs', 'optim_wraper.optimizer.lr', 'rot'])
def test_an_option_that_nothing_reads_is_refused(key, tmp_path):
    message = refusal(load, tmp_path, "root = 'a'\n", '--cfg-options', f'{key}=1')
    assert message == f'--cfg-options: expected a key of MMEngine or of the config, got {key}'


def test_what_mmengine_reads_needs_no_line(tmp_path, capsys):
    options = (
        'find_unused_parameters=True',
        'sync_bn=torch',
        'model_wrapper_cfg.type=MMFullyShardedDataParallel',
        'env_cfg.cudnn_benchmark=True',
        'auto_scale_lr.enable=True',
        'activation_checkpointing=backbone',
    )
    cfg = load(tmp_path, '', '--cfg-options', *options)
    assert (cfg.find_unused_parameters, cfg.sync_bn) == (True, 'torch')
    assert capsys.readouterr().out == ''


def test_a_new_setting_that_resembles_another_is_named(tmp_path, capsys):
    text = "model = dict(type='A', test_cfg=dict(rcnn=dict(score_thr=0.1)))\n"
    options = ('model.test_cfg.rcnn.score_th=0.2', 'model.new=1', 'model.test_cfg.rpn.score=0.2')
    load(tmp_path, text, '--cfg-options', *options)
    line = '--cfg-options: model.test_cfg.rcnn.score_th: is new; did you mean score_thr?\n'
    assert capsys.readouterr().out == line


def amp(dtype, **settings):
    cfg = Config({'optim_wrapper': {'type': 'OptimWrapper'}} | settings)
    config.use_mixed_precision(cfg, dtype)
    samples = {'type': 'mmpola.Float32SamplingHook'} in cfg.get('custom_hooks', [])
    assert samples == (dtype == 'bfloat16')
    return cfg.optim_wrapper


def test_amp_names_its_precision(monkeypatch):
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    assert amp('float16', default_scope='mmdet') == {
        'type': 'AmpOptimWrapper',
        'dtype': 'float16',
        'loss_scale': 'dynamic',
    }
    assert amp('bfloat16', default_scope='mmseg') == {
        'type': 'AmpOptimWrapper',
        'dtype': 'bfloat16',
        'loss_scale': 1.0,
    }


@pytest.mark.parametrize('given', ['OptimWrapper', 'AmpOptimWrapper'])
def test_amp_without_a_gpu(given, monkeypatch):
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    wrapper = {'type': given, 'optimizer': {'type': 'AdamW'}}
    if given == 'AmpOptimWrapper':
        wrapper.update(dtype='float16', loss_scale='dynamic')
    expected = {'type': 'mmpola.BFloat16OptimWrapper', 'optimizer': {'type': 'AdamW'}}
    assert amp('bfloat16', default_scope='mmseg', optim_wrapper=wrapper) == expected
    with pytest.raises(UsageError, match='--amp'):
        amp('float16', default_scope='mmseg')


class ScaledOptimWrapper(AmpOptimWrapper):
    """A user's own."""


@pytest.mark.parametrize(
    ('wrapper', 'dtype'),
    [
        ({'type': 'OptimWrapper'}, 'float32'),
        ({'type': 'mmengine.AmpOptimWrapper'}, 'float16'),
        ({'type': 'AmpOptimWrapper', 'dtype': 'bfloat16'}, 'bfloat16'),
        ({'type': 'mmpola.BFloat16OptimWrapper'}, 'bfloat16'),
        ({'type': ScaledOptimWrapper}, 'float16'),
    ],
)
def test_the_dtype_of_a_training_step(wrapper, dtype):
    assert config.training_dtype(Config({'optim_wrapper': wrapper})) == dtype


def test_a_learning_rate_is_scaled_from_a_known_batch_size():
    cfg = Config({'auto_scale_lr': {'base_batch_size': 16}})
    config.scale_learning_rate(cfg)
    assert cfg.auto_scale_lr == {'base_batch_size': 16, 'enable': True}
    message = refusal(config.scale_learning_rate, Config({}))
    assert '--auto-scale-lr' in message and 'auto_scale_lr.base_batch_size' in message
