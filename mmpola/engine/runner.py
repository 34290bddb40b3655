"""MMEngine's Runner with a trial, pictures and a short screen; the log file has its long start."""

from __future__ import annotations

import logging
from typing import Any

import mmengine.runner
from mmengine.hooks import CheckpointHook
from mmengine.logging import MMLogger
from mmengine.registry import HOOKS
from torch import nn

from mmpola.engine.class_metrics import add_classes
from mmpola.engine.hooks.trial import TrialHook
from mmpola.engine.last_step import NOTED, HookCalls, keep_last_step
from mmpola.engine.result_names import write_apart
from mmpola.engine.screen import Screen, ScreenHook, prints_logged
from mmpola.engine.types import type_class

FIRST_BATCH = 'first_batch'
BUFFERS = 'buffers'
"""Keys in `default_hooks` of hooks of every run; a config leaves one out by None."""


class Runner(mmengine.runner.Runner):
    """MMEngine's Runner, with the same arguments, a trial, pictures and fewer printed lines.

    The screen shows warnings, errors and the messages of mmpola: a summary, then a row for each
    validation. On a terminal, a progress bar replaces the lines about training steps. The log file
    has everything.
    """

    _screen: Screen
    _calls = HookCalls()

    def train(self) -> nn.Module:
        """Train; keep the trained steps if an error ends the run."""
        try:
            return super().train()
        except Exception as error:
            keep_last_step(self, error, self._calls)
            raise

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """Call a method of each hook, and note which have completed it."""
        if fn_name not in NOTED:
            super().call_hook(fn_name, **kwargs)
            return
        calls = HookCalls(fn_name, kwargs, list(self.hooks))
        for hook in self.hooks:
            self._calls = calls  # a hook may validate
            getattr(hook, fn_name)(self, **kwargs)
            calls.waiting.remove(hook)

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
        """Register the hooks of the config and those of every run: average, try, draw, report."""
        hooks = {
            FIRST_BATCH: {'type': 'mmpola.FirstBatchHook'},
            BUFFERS: {'type': 'mmpola.MeanBuffersHook'},
            **(default_hooks or {}),
        }
        for key in (FIRST_BATCH, BUFFERS):
            if hooks[key] is None:  # MMEngine takes None for its own hooks only
                del hooks[key]
        super().register_hooks(hooks, custom_hooks)
        self.register_hook(TrialHook())
        self.register_hook(ScreenHook(self._screen))

    def register_hook(self, hook: Any, priority: Any = None) -> None:
        """Register a hook; MMEngine's `CheckpointHook` is replaced, whose files torch.load refuses.

        It stays where it saves somewhere else than in local folders.
        """
        is_local = isinstance(hook, dict) and not hook.get('backend_args')
        if is_local and type_class(hook.get('type'), HOOKS) is CheckpointHook:
            hook = {**hook, 'type': 'mmpola.AtomicCheckpointHook'}
        super().register_hook(hook, priority)

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
        self._log_prints(built.evaluator)
        return built

    def _log_prints(self, evaluator: Any) -> None:
        """Let an evaluator print into the log file; its validation is a row on the screen."""
        evaluate = evaluator.evaluate

        def evaluate_quietly(size: int) -> Any:
            with prints_logged(self.logger):
                return evaluate(size)

        evaluator.evaluate = evaluate_quietly

    def build_test_loop(self, loop: Any) -> Any:
        """Build the loop; what data sets and metrics print goes to the log file."""
        with prints_logged(self.logger):
            built = super().build_test_loop(loop)
        write_apart(built)
        add_classes(built, self.cfg.get('test_evaluator'))
        return built
