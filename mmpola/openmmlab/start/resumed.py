"""Prepare the checkpoint of a resumed run, and warn of its settings that override the config."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook

from mmpola.checkpoint.contents import DISTRIBUTED, PLAIN_BESIDE_AVERAGED, without_wrappers
from mmpola.messages import listed

CHANGING = ('last_step', 'base_values', 'verbose', 'best', 'num_bad_epochs', 'cooldown_counter')
"""Entries of a schedule's state that are no settings; those with an underscore are none either."""


class ResumedHook(Hook):
    """Warns of settings of the optimizer and schedule that the checkpoint overrides.

    MMEngine loads the learning rate, weight decay, milestones and others from the checkpoint. What
    the config says about them has no effect, and MMEngine does not mention it.

    Args:
        path: of the checkpoint that the run resumes from.
    """

    priority = 'VERY_HIGH'

    def __init__(self, path: str) -> None:
        self.path = path
        self.built: dict[str, Any] = {}

    def before_run(self, runner: Any) -> None:
        """Note the settings of the config."""
        self.built = _settings(runner)

    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Give the weights, plain and averaged, the names of a model without wrappers.

        MMEngine calls this before it loads them; it would leave out other names with a warning.
        """
        checkpoint['state_dict'] = without_wrappers(checkpoint['state_dict'])
        if PLAIN_BESIDE_AVERAGED not in checkpoint:
            return
        averaging = {}
        for name, x in without_wrappers(checkpoint[PLAIN_BESIDE_AVERAGED]).items():
            averaging[name if name == 'steps' else f'{DISTRIBUTED}.{name}'] = x
        checkpoint[PLAIN_BESIDE_AVERAGED] = averaging

    def before_train(self, runner: Any) -> None:
        """Log a line if the checkpoint has changed them."""
        loaded = _settings(runner)
        changed = []
        for key, value in self.built.items():
            if key not in loaded:  # of another optimizer
                changed.append(key)
            elif loaded[key] != value:
                changed.append(f'{key}={_short(loaded[key])} (config: {_short(value)})')
        if changed:
            runner.logger.warning(
                'resume: the learning rate, optimizer and param_scheduler continue as in the '
                f'checkpoint: {listed(changed)}; to use the values of the config, start a new '
                f'run from its weights: --cfg-options load_from={self.path}'
            )


def _settings(runner: Any) -> dict[str, Any]:
    """Return the settings of the optimizer and the schedule by their keys."""
    settings: dict[str, Any] = {}
    for prefix, wrapper in _by_name(runner.optim_wrapper):
        groups = wrapper.optimizer.param_groups
        for key in {key: None for group in groups for key in group}:
            changes = any(f'initial_{key}' in group for group in groups)  # as scheduled
            if key != 'params' and not changes:
                values = [group.get(key) for group in groups]
                settings[f'optim_wrapper.{prefix}{key.removeprefix("initial_")}'] = values
    for prefix, schedules in _by_name(runner.param_schedulers or []):
        for number, schedule in enumerate(schedules):
            for key, value in schedule.state_dict().items():
                is_setting = key not in CHANGING and not key.startswith('_')
                if is_setting and not callable(value):
                    settings[f'param_scheduler.{prefix}{number}.{key}'] = value
    return settings


def _by_name(parts: Any) -> list[tuple[str, Any]]:
    """Return (prefix of a key, part) of several optimizers or their schedules, or of the one."""
    if hasattr(parts, 'optim_wrappers'):
        parts = parts.optim_wrappers
    if not isinstance(parts, dict):
        return [('', parts)]
    return [(f'{name}.', part) for name, part in parts.items()]


def _short(value: Any) -> str:
    """Return a value; of parameter groups with equal values one, else the largest."""
    if isinstance(value, dict):  # milestones are a Counter
        return str(list(value))
    if isinstance(value, list) and value:
        return str(value[0] if all(x == value[0] for x in value) else max(value, key=str))
    return str(value)
