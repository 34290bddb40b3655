"""A run whose loss or weights become NaN leaves only finite checkpoints."""

from pathlib import Path

import pytest
import torch
from mmengine.hooks import EMAHook, Hook

from mmpola.checkpoint.safe_load import read_checkpoint
from mmpola.openmmlab.run.finite import NonFiniteError
from tests.helpers.training import run, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')

NAN = float('nan')


class Poison(Hook):
    """Makes the weights, or with `averaged` only their moving average, NaN after a step."""

    def __init__(self, step, averaged=False):
        self.step = step
        self.averaged = averaged

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.step:
            averages = [hook.ema_model for hook in runner.hooks if isinstance(hook, EMAHook)]
            with torch.no_grad():
                next((averages[0] if self.averaged else runner.model).parameters()).fill_(NAN)


EVERY = {'train_cfg.val_interval': 1}


AVERAGED = {**EVERY, 'default_hooks.average': {'type': 'EMAHook', 'momentum': 0.1}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('options', 'poison', 'start'),
    [
        (
            {**EVERY, 'default_hooks.logger.interval': 2},
            Poison(8),
            'loss: NaN or infinity at step 10',
        ),
        (
            EVERY,
            Poison(8),
            'model: expected finite weights to save at step ',
        ),  # at the end of the epoch
        (
            AVERAGED,
            Poison(8, averaged=True),
            'model: expected finite weights to save at step ',
        ),
    ],
    ids=['loss', 'weights', 'average'],
)
def test_no_checkpoint_of_a_non_finite_model_replaces_a_finite_one(
    options, poison, start, colours, tmp_path
):
    keep = {'default_hooks.checkpoint.max_keep_ckpts': 1}
    with pytest.raises(NonFiniteError) as raised:
        run(small_config(colours, tmp_path, options={**options, **keep}), poison)
    assert str(raised.value).startswith(start)
    assert {path.name for path in tmp_path.glob('*.pth')} == {
        'epoch_1.pth',
        'best_accuracy_top1_epoch_1.pth',
    }
    assert Path((tmp_path / 'last_checkpoint').read_text()).name == 'epoch_1.pth'
    for path in tmp_path.glob('*.pth'):
        assert all(x.isfinite().all() for x in read_checkpoint(path)['state_dict'].values())
