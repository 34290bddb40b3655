"""Average the running statistics of BatchNorm over all processes."""

from __future__ import annotations

from typing import Any

from mmengine.dist import all_reduce_params, get_world_size
from mmengine.hooks import Hook
from torch.nn import SyncBatchNorm
from torch.nn.modules.batchnorm import _NormBase


class MeanBuffersHook(Hook):
    """After every training step, averages the running statistics of norms over all processes.

    Each process computes them from its own images. Rank 0 saves its own, so without this hook
    validation, in which every process uses its own, scores a model that is in no checkpoint.
    SyncBN's are equal already, and frozen ones stay so. A run of `mmpola.engine.runner.Runner` has
    this hook; `default_hooks=dict(buffers=None)` leaves it out.
    """

    priority = 'VERY_HIGH'  # before EMAHook, which may average the buffers over the steps

    def before_train(self, runner: Any) -> None:
        """Find the norms with statistics of one process."""
        self.norms = []
        for module in runner.model.modules():
            own = isinstance(module, _NormBase) and not isinstance(module, SyncBatchNorm)
            if own and module.running_mean is not None:
                self.norms.append(module)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Average the statistics that the step has changed."""
        if get_world_size() == 1:
            return
        statistics = []
        for norm in self.norms:
            if norm.training:
                statistics += [norm.running_mean, norm.running_var]
        if statistics:
            all_reduce_params(statistics, op='mean')
