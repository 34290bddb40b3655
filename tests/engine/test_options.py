"""`--cfg-options`: how values are read, and which keys are refused."""

import argparse

import pytest
from mmengine.config import Config

from mmpola.engine.options import OptionsAction, apply_options
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
    return Config({'model': {'backbone': backbone}, 'pipeline': pipeline, 'auto_scale_lr': {'base_batch_size': 16}})


def test_values(cfg):
    options = parsed(
        'model.backbone.arch=dict(embed_dims=8, depths=(1, 1), inner={"a": [None, 1e-3]})',
        "model.backbone.init_cfg={'checkpoint': 'b c.pth'}",
        'pipeline.1.scale=(3,4)',
        'auto_scale_lr.enable=True',
        'custom_hooks.first.type=Hook',
        'load_from=x=y',
    )
    apply_options(cfg, options)
    assert cfg.to_dict() == {
        'model': {
            'backbone': {
                'type': 'mmpola.PolaSwin',
                'arch': {'embed_dims': 8, 'depths': (1, 1), 'inner': {'a': [None, 1e-3]}},
                'init_cfg': {'type': 'Pretrained', 'checkpoint': 'b c.pth'},
            }
        },
        'pipeline': [{'type': 'Load'}, {'type': 'Resize', 'scale': (3, 4)}],
        'auto_scale_lr': {'base_batch_size': 16, 'enable': True},
        'custom_hooks': {'first': {'type': 'Hook'}},
        'load_from': 'x=y',
    }
    apply_options(cfg, parsed('model.backbone.arch.depths=[2,2]'))
    assert cfg.model.backbone.arch.depths == [2, 2]


@pytest.mark.parametrize('value', ['dict(a=1', 'dict(a=open(0))', 'dict(1)', '{1', '(1,2'])
def test_values_that_cannot_be_read(value):
    with pytest.raises(UsageError) as raised:
        parsed(f'model.backbone.arch={value}')
    assert str(raised.value) == (
        '--cfg-options: model.backbone.arch: expected a number, name, list, tuple or dict, '
        f"such as dict(depths=(1, 1, 1, 1), name='x'), got {value}"
    )


@pytest.mark.parametrize(
    ('entry', 'message'),
    [
        ('model.backbone', 'expected KEY=VALUE, got model.backbone'),
        (
            'model.backbone.arch.depths=1',
            "model.backbone.arch.depths: expected a dict or list at model.backbone.arch, got 'tiny'",
        ),
        ('pipeline.2.scale=1', 'pipeline.2.scale: expected an index below 2 after pipeline, got 2'),
        (
            'optim_wraper.clip_grad=1',
            'optim_wraper.clip_grad: expected a key of the config, got optim_wraper; did you mean optim_wrapper?',
        ),
        (
            'auto_scale_lr.base_batchsize=1',
            'auto_scale_lr.base_batchsize: expected a key of auto_scale_lr, got base_batchsize; '
            'did you mean base_batch_size?',
        ),
    ],
)
def test_keys_that_have_no_place(cfg, entry, message):
    with pytest.raises(UsageError) as raised:
        apply_options(cfg, parsed(entry))
    assert str(raised.value) == f'--cfg-options: {message}'


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
