"""The learning rate schedule that the papers' models were pretrained with."""

from __future__ import annotations

import math
from typing import Any

from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.param_scheduler import INF, _ParamScheduler


class WarmupCosineLR(LRSchedulerMixin, _ParamScheduler):
    """A linear warm-up that replaces the beginning of a cosine, and a constant rate after it.

    This is timm's cosine schedule with `warmup_prefix=False`, which the authors' training code
    uses. The cosine starts at step 0, so the rate drops a little when the warm-up ends. MMEngine's
    schedulers cannot be combined to this: its cosine starts from the rate that it finds, and its
    warm-up ends one step earlier.

    With base rate r, the rate of step t (or of epoch t) is

        r (f + (1 - f) t / warmup)                     for t < warmup,
        r (m + (1 - m) (1 + cos(pi t / T_max)) / 2)    for warmup <= t < T_max,
        r m                                            from T_max on,

    with f = start_factor and m = eta_min_ratio.

    Args:
        optimizer: optimizer, or MMEngine's wrapper of one.
        warmup: steps of the warm-up.
        T_max: steps of the cosine, including the warm-up.
        start_factor: the first rate, as a part of the base rate.
        eta_min_ratio: the last rate, as a part of the base rate.
        end: step at which the schedule ends; T_max plus the steps of a cool-down.
        by_epoch: whether `warmup`, `T_max` and `end` count epochs instead of steps. With
            `convert_to_iter_based=True` in a config they count epochs, and the rate changes at
            every step.
        base: other arguments of MMEngine's schedulers.

    Raises:
        ValueError: `warmup` is not in [0, T_max).
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        warmup: int,
        T_max: int,  # noqa: N803 (the name that MMEngine and PyTorch use)
        start_factor: float,
        eta_min_ratio: float,
        end: int = INF,
        by_epoch: bool = True,
        **base: Any,
    ) -> None:
        if not 0 <= warmup < T_max:
            raise ValueError(
                f'warmup: expected a number in [0, T_max) with T_max={T_max}, got {warmup}'
            )
        self.warmup = warmup
        self.T_max = T_max
        self.start_factor = start_factor
        self.eta_min_ratio = eta_min_ratio
        super().__init__(optimizer, end=end, by_epoch=by_epoch, **base)

    @classmethod
    def build_iter_from_epoch(cls, *args: Any, epoch_length: int, **epochs: Any) -> WarmupCosineLR:
        """Build a schedule of steps from one of epochs with `epoch_length` steps each.

        MMEngine's Runner calls it.
        """
        steps = dict(epochs)
        for name in ('warmup', 'T_max', 'end'):
            if name in steps:
                steps[name] = steps[name] * epoch_length
        steps['by_epoch'] = False
        return cls(*args, **steps)

    def _get_value(self) -> list[float]:
        """Compute the learning rate of each parameter group at `last_step`."""
        step = self.last_step
        if step < self.warmup:
            factor = self.start_factor + (1 - self.start_factor) * step / self.warmup
        elif step < self.T_max:
            cosine = (1 + math.cos(math.pi * step / self.T_max)) / 2
            factor = self.eta_min_ratio + (1 - self.eta_min_ratio) * cosine
        else:
            factor = self.eta_min_ratio
        return [base * factor for base in self.base_values]
