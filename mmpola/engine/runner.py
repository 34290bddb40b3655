"""MMEngine's Runner with a trial, pictures and a short screen; the log file has its long start."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import mmengine.runner
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.logging import MMLogger
from mmengine.registry import HOOKS
from torch import nn
from tqdm import tqdm

from mmpola.engine.hooks.screen import ScreenHook
from mmpola.engine.hooks.trial import TrialHook
from mmpola.engine.last_step import NOTED, HookCalls, keep_last_step
from mmpola.engine.result_names import write_apart
from mmpola.engine.types import type_class
from mmpola.messages import FOR_THE_USER

ABOUT_MMENGINE = ('"FileClient" will be deprecated', '"HardDiskBackend" is the alias')
"""Beginnings of warnings about MMEngine's own code, which every run would print."""

SHOWN_BY_THE_BAR = re.compile(
    r'Exp name: |(Epoch|Iter)\(train\)|(Epoch|Iter)\((val|test)\).* eta: '
)
"""Beginnings of lines that a progress bar replaces; a line with metrics has no `eta`."""

FIRST_BATCH = 'first_batch'
"""Key in `default_hooks` of the hook of every run that draws; a config leaves it out by None."""


class Runner(mmengine.runner.Runner):
    """MMEngine's Runner, with the same arguments, a trial, pictures and fewer printed lines.

    Until the first batch, the screen shows only warnings, errors and the messages of mmpola. On a
    terminal, a progress bar then replaces the lines about training steps. The log file has
    everything.
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
        """Register the hooks of the config and those of every run: try, draw and report."""
        hooks = {FIRST_BATCH: {'type': 'mmpola.FirstBatchHook'}, **(default_hooks or {})}
        if hooks[FIRST_BATCH] is None:  # MMEngine takes None for its own hooks only
            del hooks[FIRST_BATCH]
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
        return built

    def build_test_loop(self, loop: Any) -> Any:
        """Build the loop; what data sets and metrics print goes to the log file."""
        with prints_logged(self.logger):
            built = super().build_test_loop(loop)
        write_apart(built)
        return built


class Screen(logging.Filter):
    """Decides which log lines appear on the screen, and writes them above a progress bar.

    Attributes:
        starting: hide lines of the level INFO, except the messages of mmpola.
        has_bar: whether the screen is a terminal, where progress bars are drawn.
        terminal: the standard output.
    """

    def __init__(self) -> None:
        super().__init__()
        self.starting = True
        self.terminal = sys.stdout
        self.has_bar = self.terminal.isatty() and is_main_process()

    def attach(self, handler: logging.StreamHandler[TextIO]) -> None:
        """Filter the lines of a handler."""
        handler.addFilter(self)
        handler.setFormatter(ScreenFormatter(handler.formatter or logging.Formatter()))
        if self.has_bar:
            handler.setStream(AboveBar(handler.stream))  # type: ignore[arg-type]

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show a line."""
        if hasattr(record, FOR_THE_USER):
            return True
        text = str(record.msg)
        if record.levelno == logging.WARNING:
            return not text.startswith(ABOUT_MMENGINE)
        if record.levelno > logging.WARNING:
            return True
        if self.starting:
            return False
        return not (self.has_bar and SHOWN_BY_THE_BAR.match(text))


class ScreenFormatter(logging.Formatter):
    """MMEngine's formatter, but mmpola's own messages appear as they are."""

    def __init__(self, others: logging.Formatter) -> None:
        super().__init__()
        self.others = others

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        if hasattr(record, FOR_THE_USER):
            return record.getMessage()
        return self.others.format(record)


class AboveBar:
    """A stream that writes above the progress bars of a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        """Write text."""
        tqdm.write(text, file=self.stream, end='')

    def flush(self) -> None:
        """Flush the terminal."""
        self.stream.flush()


@contextlib.contextmanager
def prints_logged(logger: MMLogger) -> Iterator[None]:
    """Log what is printed, such as pycocotools' remarks, at the level INFO."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        for line in printed.getvalue().splitlines():
            if line.strip():
                logger.info(line)
