"""Average the running statistics of BatchNorm over all processes."""

from __future__ import annotations

from typing import Any

from mmengine.dist import all_reduce_params, get_world_size
from mmengine.hooks import Hook
from torch import Tensor
from torch.nn import SyncBatchNorm
from torch.nn.modules.batchnorm import _NormBase


class MeanBuffersHook(Hook):
    """After every training step, averages the running statistics of norms over all processes.

    Each process computes them from its own images. Rank 0 saves its own, so without this hook
    validation, in which every process uses its own, scores a model that is in no checkpoint.
    SyncBN's are equal already, and frozen ones stay so. A run of
    `mmpola.openmmlab.run.runner.Runner` has this hook; `default_hooks=dict(buffers=None)` leaves it
    out.

    Attributes:
        norms: norms with running statistics, SyncBN too.
        before: their statistics before the newest step.
    """

    priority = 'VERY_HIGH'  # before EMAHook, which may average the buffers over the steps

    def before_train(self, runner: Any) -> None:
        """Find the norms with running statistics."""
        self.norms = []
        for module in runner.model.modules():
            if isinstance(module, _NormBase) and module.running_mean is not None:
                self.norms.append(module)
        self.before: list[tuple[Tensor, Tensor]] = []

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """Keep the statistics: the forward pass changes them, and the step may fail after it."""
        self.before = []
        for norm in self.norms:
            if norm.training:
                self.before += [(buffer, buffer.clone()) for buffer in norm.buffers()]

    def restore(self) -> None:
        """Give the norms the statistics back that they had before the newest step."""
        for buffer, value in self.before:
            buffer.copy_(value)

    def own_norms(self) -> list[_NormBase]:
        """Return the norms whose statistics differ among the processes until they are averaged."""
        if get_world_size() == 1:
            return []
        return [x for x in self.norms if x.training and not isinstance(x, SyncBatchNorm)]

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Average the statistics that the step has changed."""
        statistics = []
        for norm in self.own_norms():
            statistics += [norm.running_mean, norm.running_var]
        if statistics:
            all_reduce_params(statistics, op='mean')
