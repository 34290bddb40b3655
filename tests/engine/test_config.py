"""Changes to a config before MMEngine sees it: `--cfg-options`, hooks, loaders."""

import argparse
import time

import pytest
from mmengine.config import Config

from mmpola.engine import config
from mmpola.messages import UsageError
from tests.helpers.refusals import refusal


def load(folder, text, *arguments, add_arguments=config.add_options_argument):
    """Write name.py with this text and read it with these arguments of a script."""
    file = folder / 'name.py'
    file.write_text(text)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return config.load_config(parser.parse_args(arguments, argparse.Namespace(config=str(file))))


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_show_dir_reaches_the_hook_of_either_package(scope, tmp_path):
    cfg = Config(
        {
            'default_scope': scope,
            'default_hooks': {'visualization': {'type': 'X'}},
            'visualizer': {'type': 'Y'},
        }
    )
    config.draw_predictions(cfg, str(tmp_path))
    hook = cfg.default_hooks.visualization
    assert (hook.draw, hook.interval) == (True, 1)
    assert (hook.get('test_out_dir') or cfg.visualizer.save_dir) == str(tmp_path)
    with pytest.raises(UsageError, match='--show-dir'):
        config.draw_predictions(Config({'default_hooks': {}}), str(tmp_path))


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (
            "_base_ = 'absent.py'",
            r'name\.py: expected a config, got FileNotFoundError: .*absent\.py',
        ),
        ('model = (', r'name\.py: expected a config, got SyntaxError: '),
        ('model = backbone', r"name\.py: expected a config, got NameError: name 'backbone'"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(text, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ('bases', 'cycle'),
    [
        ({'name.py': 'name.py'}, 'name.py -> name.py'),
        ({'name.py': 'b.py', 'b.py': 'sub/c.py', 'sub/c.py': '../b.py'}, 'b.py -> c.py -> b.py'),
    ],
)
def test_circular_bases_are_named_at_once(bases, cycle, tmp_path):
    (tmp_path / 'sub').mkdir()
    for file, base in bases.items():
        (tmp_path / file).write_text(f'_base_ = [{base!r}]')
    start = time.monotonic()
    with pytest.raises(UsageError) as refused:
        load(tmp_path, f'_base_ = [{bases["name.py"]!r}]')
    assert time.monotonic() - start < 1
    assert str(refused.value).startswith(f'{tmp_path}/name.py: expected ')
    assert str(refused.value).endswith(f', got {cycle}')


def test_bases_that_meet_again_are_read(tmp_path):
    (tmp_path / 'root.py').write_text('')
    (tmp_path / 'left.py').write_text("_base_ = 'root.py'\na = 1")
    (tmp_path / 'right.py').write_text("_base_ = 'root.py'\nb = 2")
    cfg = load(tmp_path, "_base_ = ['left.py', 'right.py']")
    assert (cfg.a, cfg.b) == (1, 2)


def test_scripts_that_only_read_a_config_have_no_work_dir(tmp_path):
    reading = load(tmp_path, 'resume = False')
    training = load(tmp_path, '', '--work-dir', 'w', add_arguments=config.add_common_arguments)
    assert (reading.work_dir, reading.launcher) == ('work_dirs/name', 'none')
    assert (training.work_dir, training.launcher) == ('w', 'none')
    with pytest.raises(SystemExit):
        load(tmp_path, '', '--work-dir', 'w')


def test_loaders_without_workers_have_no_persistent_ones(tmp_path, capsys):
    loader = 'dict(num_workers=2, persistent_workers=True)'
    text = f'train_dataloader = {loader}\nval_dataloader = {loader}'
    cfg = load(tmp_path, text, '--cfg-options', 'train_dataloader.num_workers=0')
    assert cfg.train_dataloader.persistent_workers is False
    assert cfg.val_dataloader.persistent_workers is True
    note = 'train_dataloader.persistent_workers: switched off, because num_workers is 0\n'
    assert capsys.readouterr().out == note


@pytest.mark.parametrize(
    ('hook', 'saved'),
    [
        (
            {'type': 'CheckpointHook', 'interval': 2},
            {'type': 'mmpola.AtomicCheckpointHook', 'interval': 2},
        ),
        (None, None),
        *[
            ({'type': 'CheckpointHook', 'backend_args': {'backend': 's3'}},) * 2
        ],  # not for local files
    ],
)
def test_a_config_of_mmdet_saves_plain_files_too(hook, saved, tmp_path):
    assert (
        load(tmp_path, f'default_hooks = dict(checkpoint={hook})').default_hooks.checkpoint == saved
    )


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


@pytest.mark.parametrize('entry', ['model.backbone', 'model.backbone.arch=(1,2'])
def test_entries_that_cannot_be_read(entry):
    with pytest.raises(UsageError, match='--cfg-options: expected KEY=VALUE'):
        parsed(entry)


@pytest.mark.parametrize(
    ('entry', 'message'),
    [
        (
            'model.backbone.arch.depths=1',
            "expected a dict or list at model.backbone.arch, got 'tiny'",
        ),
        ('pipeline.2.scale=1', 'expected an index below 2 after pipeline, got 2'),
        (
            'optim_wraper.clip_grad=1',
            'expected a key of the config, got optim_wraper; did you mean optim_wrapper?',
        ),
        (
            'test_cfg.score_thresh=1',
            'expected a key of test_cfg, got score_thresh; did you mean score_thr?',
        ),
        (
            'auto_scale_lr.base_batch_size=1e-4x',
            'expected a number, as 16 in the config, got 1e-4x',
        ),
    ],
)
def test_keys_that_have_no_place(cfg, entry, message):
    key = entry.partition('=')[0]
    assert refusal(config.apply_options, cfg, parsed(entry)).startswith(
        f'--cfg-options: {key}: {message}'
    )


@pytest.mark.parametrize(
    'value',
    [
        'dict(a=1)',
        'dict(a=1,b=2)',
        "{'a': 1}",
        '[dict(a=1,b=2)]',
        '[1, dict(a=1)]',
        '(dict(a=1, b=2),)',
    ],
)
def test_dicts_are_refused(value):
    message = refusal(parsed, f'model.backbone.arch={value}')
    assert message.startswith(
        '--cfg-options: model.backbone.arch: expected a number, name, list or tuple'
    )
    place = 'model.backbone.arch.0' if value[0] in '[(' else 'model.backbone.arch'
    assert f'({place}.NAME=VALUE)' in message
    assert message.endswith(f', got {value}')


def test_a_variable_of_the_file_is_refused(tmp_path):
    file = tmp_path / 'config.py'
    file.write_text(
        "root = 'a'\nread_by_a_hook = 1\ntrain_dataloader = dict(dataset=dict(root=root))\n"
    )
    cfg = Config.fromfile(file)
    config.apply_options(cfg, parsed('read_by_a_hook=2', 'train_dataloader.dataset.root=b'))
    assert (cfg.read_by_a_hook, cfg.train_dataloader.dataset.root) == (2, 'b')
    with pytest.raises(UsageError, match='--cfg-options: root: expected a key that is read later'):
        config.apply_options(cfg, parsed('root=c'))


def amp(dtype, **settings):
    cfg = Config({'optim_wrapper': {'type': 'OptimWrapper'}} | settings)
    config.apply_arguments(cfg, argparse.Namespace(amp=dtype, auto_scale_lr=False, resume=None))
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
    with pytest.raises(
        UsageError, match=r'--amp: expected float16 for a model of mmdet, got bfloat16'
    ):
        amp('bfloat16', default_scope='mmdet')


@pytest.mark.parametrize('given', ['OptimWrapper', 'AmpOptimWrapper'])
def test_amp_without_a_gpu(given, monkeypatch):
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    wrapper = {'type': given, 'optimizer': {'type': 'AdamW'}}
    if given == 'AmpOptimWrapper':
        wrapper.update(dtype='float16', loss_scale='dynamic')
    expected = {'type': 'mmpola.BFloat16OptimWrapper', 'optimizer': {'type': 'AdamW'}}
    assert amp('bfloat16', default_scope='mmseg', optim_wrapper=wrapper) == expected
    with pytest.raises(UsageError, match='--amp: expected a GPU for float16'):
        amp('float16', default_scope='mmseg')
    with pytest.raises(
        UsageError, match='--amp: expected float16 for a model of mmdet, got bfloat16'
    ):
        amp('bfloat16', default_scope='mmdet')
