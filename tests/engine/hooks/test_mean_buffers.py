"""Running statistics are averaged over two processes, in the model and in its EMA."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import EMAHook
from mmengine.model import ExponentialMovingAverage
from torch import distributed, multiprocessing, nn

from mmpola.engine.hooks.mean_buffers import MeanBuffersHook

pytestmark = pytest.mark.slow


def average(rank, folder, event):
    """Run one of two processes: set different statistics, call the hook and save the result."""
    distributed.init_process_group('gloo', init_method=f'file://{folder}/meeting', rank=rank, world_size=2)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    ema = EMAHook()
    ema.ema_model = ExponentialMovingAverage(model, update_buffers=True)
    for offset, network in ((0, model), (10, ema.ema_model.module)):
        network[1].running_mean.fill_(offset + rank)
        network[1].running_var.fill_(offset + 3 * rank)
        network[1].num_batches_tracked.fill_(4)
    hook = MeanBuffersHook()
    getattr(hook, event)(SimpleNamespace(model=model, hooks=[ema]))
    torch.save([dict(model.named_buffers()), dict(ema.ema_model.module.named_buffers())], f'{folder}/rank{rank}.pt')
    distributed.destroy_process_group()


@pytest.mark.parametrize('event', ['after_train_epoch', 'before_val_epoch'])  # the latter in iteration-based training
def test_all_processes_get_the_mean(event, tmp_path):
    multiprocessing.spawn(average, args=(str(tmp_path), event), nprocs=2)
    for rank in (0, 1):
        plain, averaged = torch.load(tmp_path / f'rank{rank}.pt')
        for buffers, offset in ((plain, 0), (averaged, 10)):
            assert buffers['1.running_mean'].tolist() == [offset + 0.5] * 2
            assert buffers['1.running_var'].tolist() == [offset + 1.5] * 2
            assert buffers['1.num_batches_tracked'] == 4
