"""Load the weights that a run starts from, when training or a test begins."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from torch import Tensor

from mmpola.openmmlab.config.build import unwrapped


class StartHook(Hook):
    """Loads weights that have been compared with the model, when training or a test begins.

    MMEngine's `load_from` finds no weights in the authors' files, and only warns of tensors that do
    not fit.

    Args:
        weights: tensors by the model's names.
    """

    priority = 'VERY_HIGH'

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def before_train(self, runner: Any) -> None:
        """Load the weights."""
        self._load(runner)

    def before_test(self, runner: Any) -> None:
        """Load the weights."""
        self._load(runner)

    def _load(self, runner: Any) -> None:
        load(runner, self.weights)
        self.weights = {}


def load(runner: Any, weights: dict[str, Tensor]) -> None:
    """Load tensors, by the model's names, into the model of a run; others stay as they are."""
    unwrapped(runner.model).load_state_dict(weights, strict=False)
    # EMAHook starts its average from them.
    runner.call_hook('after_load_checkpoint', checkpoint={'state_dict': weights})
