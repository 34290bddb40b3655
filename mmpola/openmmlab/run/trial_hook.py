"""Validates two images before the first step, so that a late error comes early, in one line."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.dist import broadcast_object_list, get_world_size, is_main_process
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, Hook
from torch import distributed

from mmpola.messages import UsageError, first_line, info, listed
from mmpola.openmmlab.config.contents import nodes, skipped_checks
from mmpola.openmmlab.run.advice import flat_schedulers
from mmpola.openmmlab.run.final_test import FinalTestHook
from mmpola.openmmlab.run.trial import (
    Trial,
    check_teacher,
    every_score_counts,
    teacher_of,
    without_traces,
)

IMAGES = 2
"""Number of images that are tried, of each data set."""

PARTS = ('dataloader', 'evaluator', 'cfg')
"""Last words of the keys of a validation or a test."""


class TrialHook(Hook):
    """Validates the first images before training, and tests the first ones before a test.

    They go through the model, every metric, and the hook that draws if it draws: what would end a
    run after its first epoch ends it before the first step, with one line. The names of the metrics
    are then known; those that `save_best`, EarlyStoppingHook and ReduceOnPlateau wait for must be
    among them. Before training, the test data are tried too if a FinalTestHook evaluates them, and
    a teacher sees a training batch.

    The results of a run are the same bit for bit. Only the first process runs the images.
    `data_checks.skip` of the config leaves out 'trial' or 'metric-names'.

    Raises:
        UsageError: something fails, or no metric has the name that a part of the config waits for.
    """

    priority = 'HIGH'  # after the weights are loaded, before other hooks wait for the first batch

    def before_train(self, runner: Any) -> None:
        """Try the teacher, validate, compare metrics, and test if training ends with a test."""
        cfg = runner.cfg
        if 'trial' in skipped_checks(cfg):
            return
        if teacher_of(runner.model) is not None:
            _try(runner, 'train_dataloader through model.teacher', try_teacher)
        if runner._val_loop is not None:
            awaited = []
            if 'metric-names' not in skipped_checks(cfg):
                awaited = awaited_metrics(runner)
            compare_names(awaited, _try_split(runner, 'val', wants_metrics=bool(awaited)))
        is_other = any(cfg.get(f'test_{part}') != cfg.get(f'val_{part}') for part in PARTS)
        if is_other and any(isinstance(hook, FinalTestHook) for hook in runner.hooks):
            _try_split(runner, 'test')

    def before_test(self, runner: Any) -> None:
        """Test, unless the test is a part of training."""
        is_training = not (runner._train_loop is None or isinstance(runner._train_loop, dict))
        if not is_training and 'trial' not in skipped_checks(runner.cfg):
            _try_split(runner, 'test')


def _try_split(runner: Any, split: str, wants_metrics: bool = False) -> list[str]:
    """Run the first images of a split in the first process; return the metrics' names in all."""
    tried = partial(try_images, split=split, wants_metrics=wants_metrics)
    return _try(runner, f'{split}_dataloader through model and {split}_evaluator', tried)


def _try(runner: Any, what: str, tried: Callable[[Any], tuple[str | None, list[str]]]) -> list[str]:
    """Call a function of the runner in the first process; return what it found in all."""
    began = time.perf_counter()
    outcome: list[Any] = [None, []]
    with alone():
        if is_main_process():
            outcome = list(tried(runner))
    broadcast_object_list(outcome)
    problem, names = outcome
    if problem is not None:
        raise UsageError(problem)
    info(f'trial        {IMAGES} images of {what}: {time.perf_counter() - began:.1f} s')
    return list(names)


def try_teacher(runner: Any) -> tuple[str | None, list[str]]:
    """Let the teacher see a training batch; return what is wrong, in one line, or None."""
    try:
        with without_traces(runner):
            check_teacher(runner, IMAGES)
    except Exception as error:  # models and runtimes raise exceptions of any type
        runner.logger.info(traceback.format_exc())
        if str(error).startswith('teacher'):
            return f'model.{error} [trial]', []
        return (
            f'model.teacher: expected no error for a training batch of {IMAGES} images, repeated, '
            f'got {first_line(error)}; the traceback is in the log file [trial]'
        ), []
    return None, []


def try_images(runner: Any, split: str, wants_metrics: bool) -> tuple[str | None, list[str]]:
    """Run the first images of a split.

    Args:
        runner: MMEngine's.
        split: 'val' or 'test'.
        wants_metrics: if the evaluator returns no metric, because an untrained detector finds
            nothing, run the images again with boxes of all scores.

    Returns:
        What is wrong, in one line, or None; and the names of the metrics.
    """
    trial = None
    problem = None
    with tempfile.TemporaryDirectory(prefix='mmpola_') as folder:
        try:
            with without_traces(runner):
                trial = Trial(runner, split, IMAGES, Path(folder))
                trial.run()
                if wants_metrics and not trial.metrics:
                    with every_score_counts(runner.model):
                        trial.run()
            return None, list(trial.metrics)
        except Exception as error:  # models and metrics raise exceptions of any type
            runner.logger.info(traceback.format_exc())
            key, method = f'{split}_dataloader, {split}_evaluator', 'a constructor'
            if trial is not None:
                key, method = trial.place_of(error)
            problem = (
                f'{key}: expected no error for {IMAGES} images of {split}_dataloader, got '
                f'{first_line(error)} in {method}; the traceback is in the log file [trial]'
            )
        finally:
            trial = None
            gc.collect()  # metrics remove their own files from the folder
    return problem, []


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let the first process be the only one of its run: its evaluator collects no results.

    An error in one process would otherwise leave the others waiting for it. All processes enter
    and leave together.
    """
    if get_world_size() == 1:
        yield
        return
    everyone = distributed.group.WORLD
    first = distributed.new_group([0])
    if is_main_process():
        distributed.group.WORLD = first
    try:
        yield
    finally:
        distributed.group.WORLD = everyone


def awaited_metrics(runner: Any) -> list[tuple[str, str]]:
    """Return (config key, name) of the metrics that hooks and schedules wait for."""
    awaited = []
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook):
            awaited += [('save_best', name) for name in hook.save_best or () if name != 'auto']
        elif isinstance(hook, EarlyStoppingHook):
            awaited.append(('monitor', hook.monitor))
    for schedule in flat_schedulers(runner.param_schedulers):
        if getattr(schedule, 'need_val_args', False):
            awaited.append(('monitor', schedule.monitor))
    return [(_key_of_value(runner.cfg, word, name), name) for word, name in awaited]


def _key_of_value(cfg: Any, word: str, value: str) -> str:
    """Return the key of the config that ends with a word and has a value, or holds it in a list."""
    for part in ('default_hooks', 'custom_hooks', 'param_scheduler'):
        for key, node in nodes(cfg.get(part), part):
            found = node.get(word)
            if found == value or (isinstance(found, (list, tuple)) and value in found):
                return f'{key}.{word}'
    return word


def compare_names(awaited: list[tuple[str, str]], metrics: list[str]) -> None:
    """Raise UsageError if a metric that something waits for is not among those of an evaluator."""
    for key, name in awaited:
        if not metrics:
            info(f'{key}: {name} is not compared: the evaluator returns no metric for these images')
        elif name not in metrics:
            ends = [metric for metric in metrics if metric.endswith(f'/{name}')]
            (nearest, *_) = ends or get_close_matches(name, metrics, n=1, cutoff=0)
            raise UsageError(
                f'{key}: expected a metric of val_evaluator ({listed(metrics)}), got {name}; did '
                f'you mean {nearest}? [metric-names]'
            )
