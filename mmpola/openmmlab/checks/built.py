"""The hook that runs the checks of a built run and of its schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmengine.hooks import CheckpointHook, Hook

from mmpola.messages import UsageError
from mmpola.openmmlab.checks.table import BUILT, WARNING, Built, check, names_to_skip, run_checks
from mmpola.openmmlab.run.advice import flat_schedulers, is_by_epoch, length_advice


@check('warm-up', WARNING, BUILT)
def warm_up(built: Built) -> Iterator[str]:
    """Parts of the schedule that count steps do not fit the run."""
    runner = built.runner
    if built.split == 'val' and runner.cfg.get('train_cfg') and is_by_epoch(runner.train_loop):
        yield from length_advice(runner.cfg, runner.max_iters)


@check('counting', WARNING, BUILT)
def counting(built: Built) -> Iterator[str]:
    """Checkpoint hook or schedule count epochs where training counts steps."""
    if built.split != 'val':
        return
    loop = built.runner.train_loop
    by_epoch = is_by_epoch(loop)
    key = 'default_hooks.checkpoint'
    for hook in built.runner.hooks:
        if not isinstance(hook, CheckpointHook):
            continue
        if hook.by_epoch and not by_epoch:
            yield (
                f'{key}: counts epochs, but train_cfg counts steps: there is no checkpoint before '
                'the end of the run; set by_epoch=False, and interval to a number of steps'
            )
        elif not hook.by_epoch and by_epoch and hook.interval > loop.max_iters:
            yield (
                f'{key}: counts steps (interval={hook.interval}), and the run has only '
                f'{loop.max_iters}: there is no checkpoint before its end; set by_epoch=True'
            )
    for scheduler in flat_schedulers(built.runner.param_schedulers):
        counts = not getattr(scheduler, 'need_val_args', False)  # ReduceOnPlateau: validations
        if counts and scheduler.by_epoch and not by_epoch:
            yield (
                f'param_scheduler: {type(scheduler).__name__} counts epochs, but train_cfg counts '
                'steps: it changes nothing; set by_epoch=False, and its numbers to steps'
            )


class ChecksHook(Hook):
    """Asks the checks of a run that is built, before its first step or before a test.

    Two images of the validation or test data go through the model and every metric: what would end
    a run after its first epoch ends it before the first step, with one line. The names of the
    metrics are then known; those that `save_best`, EarlyStoppingHook and ReduceOnPlateau wait for
    must be among them. The results of a run are the same bit for bit. `data_checks.skip` of the
    config leaves out checks by their names.

    Raises:
        UsageError: with a line for each error that was found.
    """

    priority = 'HIGH'  # after the weights are loaded, before other hooks wait for the first batch

    def before_train(self, runner: Any) -> None:
        """Ask the checks, with images of the validation data."""
        _ask(Built(runner, 'val'))

    def before_test(self, runner: Any) -> None:
        """Ask the checks, with images of the test data."""
        _ask(Built(runner, 'test'))


def _ask(built: Built) -> None:
    errors = []
    for one in run_checks(BUILT, built, names_to_skip(built.runner.cfg)):
        if one.level == WARNING:
            built.runner.logger.warning(one.line)
        else:
            errors.append(one.line)
    if errors:
        raise UsageError('\n  '.join(errors))
