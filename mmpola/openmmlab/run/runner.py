"""MMEngine's Runner with checks, pictures and a short screen; the log file has its long start."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mmengine.runner
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MMLogger
from mmengine.registry import HOOKS, OPTIMIZERS
from torch import nn

from mmpola.messages import UsageError
from mmpola.openmmlab.config.build import reason
from mmpola.openmmlab.config.contents import nodes, type_name
from mmpola.openmmlab.config.types import type_class
from mmpola.openmmlab.results.metrics import add_classes, log_prints, write_apart
from mmpola.openmmlab.screen.screen import Screen, ScreenHook, prints_logged
from mmpola.openmmlab.start.last_step import keep_last_step

FIRST_BATCH = 'first_batch'
BUFFERS = 'buffers'
CHECKS = 'checks'
MISTAKES = 'mistakes'
"""Keys in `default_hooks` of hooks of every run; a config leaves one out by None."""


BUILT = {
    'mkdir_or_exist': 'work_dir',
    'setup_env': 'env_cfg',
    'set_randomness': 'randomness',
    'build_log_processor': 'log_processor',
    'build_logger': 'log_level',
    'build_visualizer': 'visualizer',
    'add_config': 'visualizer',
    'wrap_model': 'model_wrapper_cfg',
    'register_default_hooks': 'default_hooks',
    'register_custom_hooks': 'custom_hooks',
    'build_train_loop': 'train_cfg',
    'build_val_loop': 'val_cfg',
    'build_test_loop': 'test_cfg',
    'build_optim_wrapper': 'optim_wrapper',
    'build_param_scheduler': 'param_scheduler',
    '_check_scheduler_cfg': 'param_scheduler',
    'scale_lr': 'auto_scale_lr',
    '_clip_grad': 'optim_wrapper.clip_grad',
    'check_teacher': 'model.teacher',
}
"""Functions in which MMEngine builds or uses a part of a config -> the key of the part."""

BUILT_IN_LOOP = {
    'build_dataloader': 'dataloader',
    'seeded_loader': 'dataloader',
    'build_evaluator': 'evaluator',
}
"""The same, of parts that each loop has: `train_dataloader`, `val_evaluator`."""

UNFORMATTED = 'Failed to format the config file'
"""Beginning of MMEngine's error, with the whole config, for any that reaches it while formatting.

A signal may raise one there, such as torch's report of a killed data worker.
"""

FIRST_CALLS = ('before_run', 'before_train')
"""Methods in which hooks build the rest of themselves."""


class Runner(mmengine.runner.Runner):
    """MMEngine's Runner, with the same arguments, checks, pictures and fewer printed lines.

    The screen shows warnings, errors and the messages of mmpola: a summary, then a row for each
    validation. On a terminal, a progress bar replaces the lines about training steps. The log file
    has everything.
    """

    _screen: Screen

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with self._keys_named():
            super().__init__(*arguments, **options)

    def train(self) -> nn.Module:
        """Train; keep the trained steps if an error ends the run."""
        with self._keys_named():
            try:
                return super().train()
            except Exception as error:
                keep_last_step(self, error)
                raise

    def test(self) -> dict[str, float]:
        """Evaluate."""
        with self._keys_named():
            return super().test()

    @contextmanager
    def _keys_named(self) -> Iterator[None]:
        """Turn an error from a part of the config into one line with the key of the part.

        Raises:
            UsageError: instead of it; the traceback is in the log file, if that exists already.
        """
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            hidden = error.__context__
            if hidden is not None and str(error).startswith(UNFORMATTED):
                raise hidden from None
            key = part_of(error, getattr(self, 'cfg', {}))
            if key is None:
                raise
            where = ''
            if hasattr(self, 'logger'):
                self.logger.info(traceback.format_exc())
                where = '; the traceback is in the log file'
            raise UsageError(f'{key}: {reason(error)}{where}') from error

    def build_logger(self, *arguments: Any, **options: Any) -> MMLogger:
        """Build MMEngine's logger and put the filter in front of its screen."""
        logger = super().build_logger(*arguments, **options)
        self._screen = Screen()
        for handler in logger.handlers:
            is_file = isinstance(handler, logging.FileHandler)
            if isinstance(handler, logging.StreamHandler) and not is_file:
                self._screen.attach(handler)
        return logger

    def register_hooks(self, default_hooks: Any = None, custom_hooks: Any = None) -> None:
        """Register the hooks of the config and of every run: average, check, draw, report."""
        hooks = {
            FIRST_BATCH: {'type': 'mmpola.FirstBatchHook'},
            BUFFERS: {'type': 'mmpola.MeanBuffersHook'},
            CHECKS: {'type': 'mmpola.ChecksHook'},
            MISTAKES: {'type': 'mmpola.MistakesHook'},
            **(default_hooks or {}),
        }
        for key in (FIRST_BATCH, BUFFERS, CHECKS, MISTAKES):
            if hooks[key] is None:  # MMEngine takes None for its own hooks only
                del hooks[key]
        super().register_hooks(hooks, custom_hooks)
        self.register_hook(ScreenHook(self._screen))

    def register_hook(self, hook: Any, priority: Any = None) -> None:
        """Register a hook; MMEngine's `CheckpointHook` is replaced, whose files torch.load refuses.

        It stays where it saves somewhere else than in local folders.
        """
        is_local = isinstance(hook, dict) and not hook.get('backend_args')
        if is_local and type_class(hook.get('type'), HOOKS) is CheckpointHook:
            hook = {**hook, 'type': 'mmpola.AtomicCheckpointHook'}
        super().register_hook(hook, priority)

    def set_randomness(self, **options: Any) -> None:
        """Seed; errors in the options are found here, as `_keys_named` knows this method."""
        super().set_randomness(**options)

    def build_optim_wrapper(self, optim_wrapper: Any) -> Any:
        """Build the wrapper; MMEngine's error for an unknown optimizer does not name it."""
        settings = optim_wrapper.get('optimizer') if isinstance(optim_wrapper, dict) else None
        kind = settings.get('type') if isinstance(settings, dict) else None
        if isinstance(kind, str) and type_class(kind, OPTIMIZERS) is None:
            raise UsageError(f'optim_wrapper.optimizer.type: expected an optimizer, got {kind}')
        return super().build_optim_wrapper(optim_wrapper)

    def build_train_loop(self, loop: Any) -> Any:
        """Build the loop; what data sets print goes to the log file."""
        with prints_logged(self.logger):
            return super().build_train_loop(loop)

    def build_val_loop(self, loop: Any) -> Any:
        """Build the loop; what data sets and metrics print goes to the log file."""
        with prints_logged(self.logger):
            built = super().build_val_loop(loop)
        write_apart(built)
        add_classes(built, self.cfg.get('val_evaluator'))
        log_prints(built.evaluator, self.logger)
        return built

    def build_test_loop(self, loop: Any) -> Any:
        """Build the loop; what data sets and metrics print goes to the log file."""
        with prints_logged(self.logger):
            built = super().build_test_loop(loop)
        write_apart(built)
        add_classes(built, self.cfg.get('test_evaluator'))
        return built


def part_of(error: BaseException, cfg: Any) -> str | None:
    """Return the key of the innermost part of a config that an error comes from; None if none."""
    key = None
    split = ''
    built: dict[str, Any] = {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_name
        owner = frame.f_locals.get('self')
        if name.startswith('build_') and name.endswith('_loop'):
            split = name.split('_')[1]
        if name in BUILT:
            key = BUILT[name]
        elif name in BUILT_IN_LOOP and split:
            key = f'{split}_{BUILT_IN_LOOP[name]}'
        elif name in FIRST_CALLS and isinstance(owner, Hook):
            key = key_of_hook(cfg, type(owner).__name__)
        elif name == 'build_from_cfg' and isinstance(frame.f_locals.get('cfg'), dict):
            built = frame.f_locals['cfg']
    if key is None:
        return None
    settings = _settings(built)
    for name, node in nodes(cfg.get(key), key):
        if node == built or (settings and _settings(node) == settings):
            return name
    return key


def key_of_hook(cfg: Any, name: str) -> str:
    """Return the config key of the first hook of a class, else the name of the class."""
    for part in ('default_hooks', 'custom_hooks'):
        for key, node in nodes(cfg.get(part), part):
            if type_name(node.get('type')) == name:
                return key
    return name


def _settings(node: dict[str, Any]) -> dict[str, Any]:
    """Return what a part of a config passes to the constructor, whose name a run may replace."""
    return {key: value for key, value in node.items() if key not in ('type', 'priority')}
