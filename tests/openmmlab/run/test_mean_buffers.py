"""Running statistics of norms: those of a step that fails are taken back."""

from types import SimpleNamespace

import torch
from torch import nn

from mmpola.openmmlab.run.mean_buffers import MeanBuffersHook


def test_statistics_of_a_step_that_fails_are_taken_back():
    """Norms without running statistics, or frozen ones, have none to take back."""
    frozen = nn.BatchNorm2d(3).eval()
    norms = [nn.BatchNorm2d(3), frozen, nn.InstanceNorm2d(3)]
    norms.append(nn.BatchNorm2d(3, track_running_stats=False))
    model = nn.Sequential(*norms)
    runner = SimpleNamespace(model=model)
    hook = MeanBuffersHook()
    hook.before_train(runner)
    hook.before_train_iter(runner, 0)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    model(5 + torch.randn(4, 3, 8, 8))
    changed = [name for name, x in model.state_dict().items() if not torch.equal(x, before[name])]
    assert changed == ['0.running_mean', '0.running_var', '0.num_batches_tracked']
    hook.restore()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    hook.after_train_iter(runner, 0)  # of one process: nothing is averaged
