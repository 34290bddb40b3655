"""Training steps equal those of the authors' training loop: optimizer, decay rules, schedule and
clipping.
"""

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, build_scheduler_from_cfg
from mmengine.structures import BaseDataElement

from tests.backbones.test_golden import relative_error, settings_of

pytestmark = pytest.mark.usefixtures('unformatted_configs')

CONFIGS = {
    'pola_pvt': 'imagenet_pola_pvt_m',
    'pola_swin': 'imagenet_pola_swin_t',
    'polaformer_pp': 'imagenet_polaformer_pp_b2',
}
"""Kind of model -> the config whose yaml the recorded steps used, with a shorter schedule."""

LARGEST_ERRORS = {'losses': 1e-9, 'grad_norms': 1e-7, 'final': 1e-6}
"""Largest relative errors. The final weights, and the rotary tables of PolaFormer++, were
float32.
"""


def shortened_schedule(cfg, record):
    """Return the config's schedule with the epochs of a recording, whose rates are not scaled with
    the batch.
    """
    (schedule,) = cfg.param_scheduler
    assert schedule.start_factor * cfg.optim_wrapper.optimizer.lr == pytest.approx(
        record['warmup_lr']
    )
    assert schedule.eta_min_ratio * cfg.optim_wrapper.optimizer.lr == pytest.approx(
        record['min_lr']
    )
    epochs = record['epochs']
    end = epochs + record['cooldown_epochs']
    return {**schedule, 'warmup': record['warmup_epochs'], 'T_max': epochs, 'end': end}


def load_start(record, golden):
    """Build the classifier of a golden file in float64, with its weights and in training mode."""
    start = golden(record['golden'].removesuffix('.pt'))
    model = MODELS.build(settings_of(record['golden'].removesuffix('.pt'), start))
    model.load_state_dict(model.rename_weights(start['checkpoint']['model']), strict=False)
    return model.double().train()


def largest_relative_difference(found, expected):
    """Return the largest relative difference of a list of numbers from a float64 tensor."""
    found = torch.tensor(found, dtype=torch.float64)
    return (found / expected - 1).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize('kind', CONFIGS)
def test_training_steps_equal_the_authors(kind, golden, root):
    record = golden(f'training/{kind}_steps')
    cfg = Config.fromfile(root / 'configs' / f'{CONFIGS[kind]}.py')
    assert cfg.optim_wrapper.optimizer.lr == record['base_lr']
    assert cfg.optim_wrapper.optimizer.weight_decay == record['weight_decay']
    assert cfg.optim_wrapper.clip_grad.max_norm == record['clip_grad']

    model = load_start(record, golden)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    schedule = build_scheduler_from_cfg(
        shortened_schedule(cfg, record),
        PARAM_SCHEDULERS,
        {'optimizer': optimizer, 'epoch_length': record['steps_per_epoch']},
    )
    images = record['images_u8'].double() / 64 - 2
    losses = []
    norms = []
    rates = []
    for step in range(len(record['losses'])):
        batch = step % len(images)
        samples = [BaseDataElement(gt_score=target) for target in record['targets'][batch].double()]
        loss = model(images[batch], samples, mode='loss')['loss']
        rates.append(optimizer.get_lr()['lr'][0])
        optimizer.update_params(loss)
        losses.append(loss.item())
        norms.append(MessageHub.get_current_instance().get_scalar('train/grad_norm').current())
        if step:  # the authors set a rate after its step: their first two steps have the same
            schedule.step()

    assert rates == pytest.approx(record['learning_rates'].tolist(), rel=1e-12)
    parameters = dict(model.named_parameters())
    final = model.rename_weights(record['final'])
    unused = (
        {'norm.weight', 'norm.bias'} if kind == 'pola_pvt' else set()
    )  # parameters that the authors never read
    errors = {
        'losses': largest_relative_difference(losses, record['losses']),
        'grad_norms': largest_relative_difference(norms, record['grad_norms']),
        'final': max(
            relative_error(parameters[name], final[name]) for name in final.keys() - unused
        ),
    }
    for name, largest in LARGEST_ERRORS.items():
        assert errors[name] < largest, errors
