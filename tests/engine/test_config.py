"""Changes to a config before MMEngine sees it."""

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
