"""What the scripts do to a config and to torch before MMEngine sees them."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer

from mmpola.checkpoint import reading
from mmpola.engine import config
from mmpola.messages import UsageError


def test_sync_bn_is_replaced_wherever_it_stands():
    sync, batch = {'type': 'SyncBN', 'requires_grad': True}, {'type': 'BN'}
    heads = [{'norm_cfg': dict(sync)}, {'convs': {'norm_cfg': dict(sync)}}]
    cfg = Config({'model': {'backbone': {'norm_cfg': batch}, 'heads': heads}})
    assert config._replace_sync_bn(cfg.model) == 2
    assert cfg.model.heads[0].norm_cfg == {'type': 'BN', 'requires_grad': True}
    assert cfg.model.heads[1].convs.norm_cfg.type == 'BN'
    assert config._replace_sync_bn(cfg.model) == 0


def test_the_log_history_of_a_checkpoint_loads_as_weights_only(tmp_path):
    reading.allow_training_checkpoints()
    buffer = HistoryBuffer([1.5, 2.5], [1, 1])
    torch.save({'message_hub': {'loss': buffer}, 'meta': {'iter': 3}}, tmp_path / 'checkpoint.pth')
    loaded = torch.load(tmp_path / 'checkpoint.pth', weights_only=True)
    assert loaded['message_hub']['loss'].mean() == 2.0


def test_nothing_but_the_log_history_may_look_up_attributes(tmp_path):
    reading.allow_training_checkpoints()

    class Lookup:
        def __reduce__(self):
            return getattr, (SimpleNamespace, 'mro')

    torch.save({'evil': Lookup()}, tmp_path / 'checkpoint.pth')
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / 'checkpoint.pth', weights_only=True)
    with pytest.raises(TypeError, match='may look up methods of HistoryBuffer only'):
        reading._history_method(SimpleNamespace, 'mro')


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
