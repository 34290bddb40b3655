"""ImageNet configs train: averaged weights, and colours that are learned."""

import pytest
import torch
from mmengine.runner import Runner

import mmpola.timm  # noqa: F401  registers the models
from tests.helpers.configs import SMALL_ARCHS
from tests.helpers.training import run, small_config

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.mark.slow
def test_averaged_weights_are_evaluated_and_saved(colours, tmp_path):
    cfg = small_config(colours, tmp_path, name='imagenet_polaformer_pp_b1', epochs=2)
    cfg.model.backbone['arch'] = SMALL_ARCHS['mmpola.PolaFormerPP']
    cfg.model.projection = 16
    cfg.default_hooks.average.momentum = 0.1
    runner = run(cfg)
    saved = torch.load(tmp_path / 'epoch_2.pth', weights_only=True)['state_dict']
    own = runner.model.state_dict()
    assert not torch.equal(saved['head.weight'], own['head.weight'])
    assert not torch.equal(saved['norm.running_mean'], own['norm.running_mean'])
    scores = runner.message_hub.get_scalar('val/accuracy/top1').data[0]
    runner.model.load_state_dict(saved)
    tested = small_config(colours, tmp_path / 'test', name='imagenet_polaformer_pp_b1')
    tested.model, tested.load_from = cfg.model, str(tmp_path / 'epoch_2.pth')
    assert Runner.from_cfg(tested).test()['accuracy/top1'] == scores[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('imagenet_pola_swin_t', {'train_dataloader.dataset.transform.auto_augment': None}),
        (
            'finetune_pola_swin_t',
            {'model.backbone.init_cfg': None, 'optim_wrapper.paramwise_cfg.decay_rate': 1.0},
        ),
    ],
)
def test_it_learns_colours(name, options, colours, tmp_path):
    options = {**options, 'optim_wrapper.optimizer.lr': 1e-2}
    runner = run(small_config(colours, tmp_path, name=name, batch=6, epochs=10, options=options))
    assert runner.message_hub.get_info('best_score') >= 80.0
    assert runner.message_hub.get_scalar('val/accuracy/top2').current() >= 80.0
