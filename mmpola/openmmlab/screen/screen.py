"""Console output of a run. The log file has all of it and more.

A summary, the first step, a row for each validation, and what was saved; on a terminal progress
bars, elsewhere MMEngine's lines about training steps and validations.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, Hook
from mmengine.logging import MMLogger
from torch import Tensor
from tqdm import tqdm
from tqdm.contrib import DummyTqdmFile

from mmpola.messages import FOR_THE_USER, counted, first_line, info
from mmpola.openmmlab.processes import is_killed_worker
from mmpola.openmmlab.run.advice import flat_schedulers, is_by_epoch
from mmpola.openmmlab.run.seeding import unchanged_generators
from mmpola.openmmlab.screen.curves import CURVES, draw_curves
from mmpola.openmmlab.screen.first_batch import after_preprocessing
from mmpola.openmmlab.screen.rows import Cells, ValidationTable, metric_cells
from mmpola.openmmlab.screen.summary import (
    best_checkpoints,
    checkpoint_lines,
    logs_scalars,
    model_lines,
    next_lines,
    stop_lines,
    training_lines,
)

ABOUT_MMENGINE = ('"FileClient" will be deprecated', '"HardDiskBackend" is the alias')
"""Beginnings of warnings about MMEngine's own code, which every run would print."""

REPLACED_BY_BARS = re.compile(r'(Epoch|Iter)\((train\)|val\)(?!.* eta: ))')
"""Beginning of MMEngine's lines that bars and rows replace on a terminal.

They are about training steps, or have the metrics of a validation (and no `eta`). Elsewhere they
stay: scripts search the output of a run for them.
"""

TEST_STEPS = re.compile(r'(Epoch|Iter)\(test\).* eta: ')
"""Beginning of MMEngine's lines about the steps of a test; a line with metrics has no `eta`."""


class Screen(logging.Filter):
    """Decides which log lines appear on the screen, and writes them above a progress bar.

    Shown are warnings, errors and the messages of mmpola, and without bars MMEngine's lines about
    training steps and metrics. A test shows the lines of its metrics too.

    Attributes:
        is_testing: whether a test runs.
        terminal: the standard output.
        has_bar: whether progress bars are drawn: on a terminal that has a size.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_testing = False
        self.terminal = sys.stdout
        self.has_bar = is_main_process() and has_size(self.terminal)

    def attach(self, handler: logging.StreamHandler[TextIO]) -> None:
        """Filter the lines of a handler."""
        handler.addFilter(self)
        handler.setFormatter(ScreenFormatter(handler.formatter or logging.Formatter()))
        if self.has_bar:
            handler.setStream(DummyTqdmFile(handler.stream))

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show a line."""
        text = str(record.msg)
        if hasattr(record, FOR_THE_USER) or record.levelno > logging.WARNING:
            return True
        if record.levelno == logging.WARNING:
            return not text.startswith(ABOUT_MMENGINE)
        if self.is_testing:
            return not (self.has_bar and TEST_STEPS.match(text))
        return not self.has_bar and REPLACED_BY_BARS.match(text) is not None


def has_size(stream: TextIO) -> bool:
    """Whether a stream is a terminal that says how wide it is; tqdm draws nothing on others."""
    return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0


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


class ScreenHook(Hook):
    """Prints a summary of a run when it starts, a row for each validation, and what was saved.

    After each validation and at the end it draws `curves.png` in the work dir, from what MMEngine
    has logged in `scalars.json`. A picture that cannot be drawn is a line in the log.

    Args:
        screen: of the runner.
    """

    priority = 'NORMAL'  # after the losses are known, before the log line

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.bar: tqdm[Any] | None = None
        self.began: float | None = None
        self.table = ValidationTable()
        self.metrics: dict[str, Any] = {}
        self.started = time.perf_counter()
        self.validated_at = 0
        self.best: list[Any] = []

    def before_train(self, runner: Any) -> None:
        """Print the summary, and the size of the first batch when it has been read."""
        self.started = time.perf_counter()
        self.validated_at = runner.iter
        self.best = best_checkpoints(runner)
        for line in (*model_lines(runner), *training_lines(runner)):
            info(line)
        after_preprocessing(runner.model, self._report_batch)

    def before_test(self, runner: Any) -> None:
        """Print the summary of an evaluation."""
        if not is_training(runner):
            for line in model_lines(runner):
                info(line)
            after_preprocessing(runner.model, self._report_batch)

    def _before_epoch(self, runner: Any, mode: str = 'train') -> None:
        """Close the bar of training before a validation or test; show the metrics of a test."""
        if mode == 'test':
            self.screen.is_testing = True
        self._close()

    def _after_iter(
        self,
        runner: Any,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = 'train',
    ) -> None:
        """Report the first step; move the bar."""
        if self.began is not None and mode == 'train':
            self._report_step(runner, time.perf_counter() - self.began)
            self.began = None
        if self.screen.has_bar:
            self._move_bar(runner, batch_idx, mode)

    def after_val_epoch(self, runner: Any, metrics: dict[str, Any] | None = None) -> None:
        """Note the metrics."""
        self.metrics = metrics or {}

    def after_val(self, runner: Any) -> None:
        """Print a row and draw the curves: MMEngine has logged the metrics and saved the best."""
        if not is_training(runner):
            return
        for line in self.table.lines(self._cells(runner)):
            info(line)
        self.validated_at = runner.iter
        self.best = best_checkpoints(runner)
        draw(runner)

    def after_test(self, runner: Any) -> None:
        """Hide metric lines again."""
        self.screen.is_testing = False

    def after_train(self, runner: Any) -> None:
        """Draw the steps after the last validation, if there are any."""
        if runner.iter > self.validated_at:
            draw(runner)

    def after_run(self, runner: Any) -> None:
        """Print the last checkpoint and the best one, and after training what comes next."""
        lines = checkpoint_lines(runner.message_hub.runtime_info)
        if is_training(runner):
            lines = [*stop_lines(runner), *lines, *next_lines(runner)]
        for line in lines:
            info(line)

    def _report_batch(self, batch: Any) -> None:
        """Print the size of the first batch and begin to measure the first step."""
        self.began = time.perf_counter()
        inputs = batch.get('inputs') if isinstance(batch, dict) else None
        if isinstance(inputs, Tensor) and inputs.dim() == 4:
            images, channels, height, width = inputs.shape
            info(
                f'first batch  {counted(images, "image")} of {width} x {height} pixels (width x '
                f'height) with {counted(channels, "channel")}, as the network reads them'
            )
        elif isinstance(inputs, Tensor):
            info(f'first batch  {" x ".join(map(str, inputs.shape))}, as the network reads it')

    def _report_step(self, runner: Any, seconds: float) -> None:
        """Print how long the first step took and when the run would end at this pace."""
        left = timedelta(seconds=round(seconds * (runner.max_iters - runner.iter - 1)))
        end = (datetime.now() + left).strftime('%Y-%m-%d %H:%M')
        info(
            f'first step   {seconds:.1f} s; at this pace the run ends in {left} ({end}), '
            'validations not counted; the first step is often the slowest'
        )

    def _cells(self, runner: Any) -> Cells:
        """Return the row of a validation; its loss is the mean since the one before."""
        place = ('step', str(runner.iter))
        if is_by_epoch(runner.train_loop):
            place = ('epoch', str(runner.epoch))
        loss = '-'
        steps = runner.iter - self.validated_at
        history = runner.message_hub.log_scalars.get('train/loss')
        if steps > 0 and history is not None:
            loss = f'{history.mean(steps):.4f}'
        awaited = awaited_metrics(runner)
        cells = [place, ('loss', loss)]
        cells += metric_cells(self.metrics, [metric for _, metric in awaited])
        if any(setting == 'save_best' for setting, _ in awaited):
            is_best = best_checkpoints(runner) != self.best
            cells.append(('best', 'best' if is_best else ''))
        minutes = (time.perf_counter() - self.started) / 60
        cells.append(('minutes', f'{minutes:.1f}'))
        return cells

    def _move_bar(self, runner: Any, index: int, mode: str) -> None:
        """Set the bar to the step after `index`; start one if there is none, close a full one."""
        title = {'train': 'training', 'val': 'validation', 'test': 'test'}[mode]
        total = len(getattr(runner, f'{mode}_dataloader'))
        if mode == 'train' and is_by_epoch(runner.train_loop):
            title = f'epoch {runner.epoch + 1}/{runner.max_epochs}'
        elif mode == 'train':
            total = runner.max_iters
        if self.bar is None:
            self.bar = tqdm(
                desc=title,
                initial=index,
                total=total,
                leave=mode == 'train' and runner.val_loop is None,  # else a row comes
                unit='step',
                dynamic_ncols=True,
                file=self.screen.terminal,
            )
        self.bar.update()
        history = runner.message_hub.log_scalars.get('train/loss')
        if mode == 'train' and history is not None:
            left = timedelta(seconds=round(runner.message_hub.runtime_info.get('eta', 0)))
            text = f'loss {history.current():.4f}, run ends in {left}'
            self.bar.set_postfix_str(text, refresh=False)
        if self.bar.n >= total:
            self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def is_training(runner: Any) -> bool:
    """Whether a validation or test belongs to a training run."""
    return not (runner._train_loop is None or isinstance(runner._train_loop, dict))


def awaited_metrics(runner: Any) -> list[tuple[str, str]]:
    """Return (setting, metric) of what hooks and schedules wait for.

    The setting is `save_best`, whose metric may be 'auto', or `monitor`.
    """
    awaited = []
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook):
            awaited += [('save_best', metric) for metric in hook.save_best or ()]
        elif isinstance(hook, EarlyStoppingHook):
            awaited.append(('monitor', hook.monitor))
    for schedule in flat_schedulers(runner.param_schedulers):
        if getattr(schedule, 'need_val_args', False):
            awaited.append(('monitor', schedule.monitor))
    return awaited


def draw(runner: Any) -> None:
    """Draw the curves of a run in its first process; a failure is a line in the log."""
    if not (is_main_process() and logs_scalars(runner)):
        return
    try:
        with unchanged_generators():
            draw_curves(runner.work_dir)
    except Exception as error:
        if is_killed_worker(error):
            raise
        path = Path(runner.work_dir, CURVES)
        info(f'{path}: not drawn ({first_line(error)}); training goes on')
