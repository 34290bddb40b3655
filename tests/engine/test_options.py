"""`--cfg-options`: how values are read, and which keys are refused."""

import argparse

import pytest
from mmengine.config import Config

from mmpola.engine.config import OptionsAction, apply_options
from mmpola.messages import UsageError


def parsed(*entries):
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=OptionsAction)
    return parser.parse_args(['--cfg-options', *entries]).cfg_options


@pytest.fixture
def cfg():
    """A config with a backbone, a pipeline and a plain dict."""
    backbone = {'type': 'mmpola.PolaSwin', 'arch': 'tiny', 'init_cfg': {'type': 'Pretrained', 'checkpoint': 'a.pth'}}
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
    apply_options(cfg, options)
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
    with pytest.raises(UsageError) as raised:
        parsed(entry)
    assert str(raised.value) == f'--cfg-options: expected KEY=VALUE, got {entry}'


@pytest.mark.parametrize(
    ('entry', 'message'),
    [
        ('model.backbone.arch.depths=1', "expected a dict or list at model.backbone.arch, got 'tiny'"),
        ('pipeline.2.scale=1', 'expected an index below 2 after pipeline, got 2'),
        ('optim_wraper.clip_grad=1', 'expected a key of the config, got optim_wraper'),
        ('test_cfg.score_thresh=1', 'expected a key of test_cfg, got score_thresh'),
        (
            'model.backbone.arch=dict(a=1)',
            'expected a number, name, list or tuple, or the entries of a dict one by one '
            '(model.backbone.arch.NAME=VALUE), got dict(a=1)',
        ),
    ],
)
def test_keys_that_have_no_place(cfg, entry, message):
    with pytest.raises(UsageError) as raised:
        apply_options(cfg, parsed(entry))
    assert str(raised.value) == f'--cfg-options: {entry.partition("=")[0]}: {message}'


def test_a_variable_of_the_file_is_refused(tmp_path):
    file = tmp_path / 'config.py'
    file.write_text("root = 'a'\nread_by_a_hook = 1\ntrain_dataloader = dict(dataset=dict(root=root))\n")
    cfg = Config.fromfile(file)
    apply_options(cfg, parsed('read_by_a_hook=2', 'train_dataloader.dataset.root=b'))
    assert (cfg.read_by_a_hook, cfg.train_dataloader.dataset.root) == (2, 'b')
    with pytest.raises(UsageError) as raised:
        apply_options(cfg, parsed('root=c'))
    assert str(raised.value) == (
        '--cfg-options: root: expected a key that is read later, got root, a variable of the config file; '
        'set the keys that are computed from it'
    )
