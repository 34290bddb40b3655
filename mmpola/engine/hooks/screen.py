"""Reports on a run: its summary, first step, progress bars and curves, and what was saved."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict
from mmengine.visualization import LocalVisBackend
from torch import Tensor, nn
from tqdm import tqdm

from mmpola.engine.advice import is_by_epoch
from mmpola.engine.curves import CURVES, draw_curves
from mmpola.engine.hooks.first_batch import FIRST_BATCH, after_preprocessing
from mmpola.engine.processes import is_killed_worker
from mmpola.engine.seeding import unchanged_generators
from mmpola.engine.validate import unwrapped
from mmpola.messages import counted, first_line, info


class ScreenHook(Hook):
    """Prints a summary of a run when it starts, progress bars on a terminal, and what was saved.

    After each validation and at the end it draws `curves.png` in the work dir, from what MMEngine
    has logged in `scalars.json`. A picture that cannot be drawn is a line in the log.

    Args:
        screen: the `Screen` of the runner: its `starting` is set to False at the first batch, its
            `has_bar` says whether to draw bars.
    """

    priority = 'NORMAL'  # after the losses are known, before the log line

    def __init__(self, screen: Any) -> None:
        self.screen = screen
        self.bar: tqdm[Any] | None = None
        self.began: float | None = None

    def before_train(self, runner: Any) -> None:
        """Print the summary, and the size of the first batch when it has been read."""
        for line in (*model_lines(runner), *training_lines(runner)):
            info(line)
        after_preprocessing(runner.model, self._report_batch)

    def before_test(self, runner: Any) -> None:
        """Print the summary of an evaluation."""
        if not is_training(runner):
            for line in model_lines(runner):
                info(line)
            after_preprocessing(runner.model, self._report_batch)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Report the first step; move the bar."""
        if self.began is not None:
            self._report_step(runner)
            self.began = None
        if not self.screen.has_bar:
            return
        if is_by_epoch(runner.train_loop):
            title = f'epoch {runner.epoch + 1}/{runner.max_epochs}'
            self._advance(title, batch_idx, len(runner.train_dataloader), leave=True)
        else:
            self._advance('training', batch_idx, runner.max_iters, leave=True)
        history = runner.message_hub.log_scalars.get('train/loss')
        if self.bar is not None and history is not None:
            left = timedelta(seconds=round(runner.message_hub.runtime_info.get('eta', 0)))
            text = f'loss {history.current():.4f}, run ends in {left}'
            self.bar.set_postfix_str(text, refresh=False)
        self._close_if_full()

    def after_val(self, runner: Any) -> None:
        """Draw the curves; MMEngine has logged the metrics."""
        if is_training(runner):
            draw(runner)

    def after_train(self, runner: Any) -> None:
        """Draw the steps after the last validation too."""
        draw(runner)

    def after_run(self, runner: Any) -> None:
        """Print the last checkpoint and the best one."""
        for line in checkpoint_lines(runner.message_hub.runtime_info):
            info(line)

    def before_val_epoch(self, runner: Any) -> None:
        """Close the bar of training."""
        self.screen.starting = False
        self._close()

    def before_test_epoch(self, runner: Any) -> None:
        """Close the bar of training."""
        self.screen.starting = False
        self._close()

    def after_val_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Move the bar."""
        self._advance('validation', batch_idx, len(runner.val_dataloader), leave=False)
        self._close_if_full()

    def after_test_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Move the bar."""
        self._advance('test', batch_idx, len(runner.test_dataloader), leave=False)
        self._close_if_full()

    def _report_batch(self, batch: Any) -> None:
        """Print the size of the first batch and begin to measure the first step."""
        self.began = time.perf_counter()
        self.screen.starting = False
        inputs = batch.get('inputs') if isinstance(batch, dict) else None
        if isinstance(inputs, Tensor) and inputs.dim() == 4:
            images, channels, height, width = inputs.shape
            info(
                f'first batch  {counted(images, "image")} of {width} x {height} pixels (width x '
                f'height) with {counted(channels, "channel")}, as the network reads them'
            )
        elif isinstance(inputs, Tensor):
            info(f'first batch  {" x ".join(map(str, inputs.shape))}, as the network reads it')

    def _report_step(self, runner: Any) -> None:
        """Print how long the first step took and when the run would end at this pace."""
        now = time.perf_counter()
        began = self.began or now
        left = timedelta(seconds=round((now - began) * (runner.max_iters - runner.iter - 1)))
        end = (datetime.now() + left).strftime('%Y-%m-%d %H:%M')
        info(
            f'first step   {now - began:.1f} s; at this pace the run ends in {left} ({end}), '
            'validations not counted; the first step is often the slowest'
        )

    def _advance(self, title: str, index: int, total: int, leave: bool) -> None:
        """Set the bar to the step after `index`; start one if there is none."""
        if not self.screen.has_bar:
            return
        if self.bar is None:
            self.bar = tqdm(
                desc=title,
                initial=index,
                total=total,
                leave=leave,
                unit='step',
                dynamic_ncols=True,
                file=self.screen.terminal,
            )
        self.bar.update()

    def _close_if_full(self) -> None:
        if self.bar is not None and self.bar.n >= self.bar.total:
            self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def is_training(runner: Any) -> bool:
    """Whether a validation or test belongs to a training run."""
    return not (runner._train_loop is None or isinstance(runner._train_loop, dict))


def logs_scalars(runner: Any) -> bool:
    """Whether MMEngine writes `scalars.json`, from which curves are drawn."""
    backends = runner.visualizer._vis_backends.values()
    return any(isinstance(backend, LocalVisBackend) for backend in backends)


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


def model_lines(runner: Any) -> list[str]:
    """Return the lines about the model, the device and the files of a run."""
    model: nn.Module = unwrapped(runner.model)
    parameters = list(model.parameters())
    total = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    name = type(model).__name__
    backbone = getattr(model, 'backbone', None)
    if isinstance(backbone, nn.Module):
        name += f' on {type(backbone).__name__}'
    size = f'{total / 1e6:.1f} M parameters'
    if trained < total:
        size += f', {trained / 1e6:.1f} M of them trained'
    device = parameters[0].device
    where = str(device)
    if device.type == 'cuda':
        where = torch.cuda.get_device_name(device)
    if get_world_size() > 1:
        where = f'{get_world_size()} processes, the first on {where}'
    return [
        f'model        {name}, {size}',
        f'device       {where}',
        f'log          {Path(runner.log_dir, f"{runner.timestamp}.log")}',
    ]


def training_lines(runner: Any) -> list[str]:
    """Return the lines about the length, the learning rate and the pictures of a training run."""
    loop = runner.train_loop
    loader = runner.train_dataloader
    images = getattr(loader.batch_sampler, 'batch_size', 0) * get_world_size()
    if is_by_epoch(loop):
        length = (
            f'{len(loader)} an epoch, {counted(runner.max_epochs, "epoch")}, '
            f'{runner.max_iters} in all'
        )
        pause = counted(runner.val_interval, 'epoch')
    else:
        length = f'{runner.max_iters} in all'
        pause = counted(runner.val_interval, 'step')
    length += f', {counted(images, "image")} each'
    if runner._val_loop is not None:
        length += f'; validation after every {pause.removeprefix("1 ")}'
    if runner.iter > 0:
        length += f'; continues after step {runner.iter}'
    pictures = f'{Path(runner.work_dir)}: {FIRST_BATCH}'
    if logs_scalars(runner):
        pictures += f', and {CURVES} after each validation'
    return [
        f'steps        {length}',
        f'optimizer    {optimizer_text(runner.optim_wrapper)}',
        f'pictures     {pictures}',
    ]


def checkpoint_lines(known: dict[str, Any]) -> list[str]:
    """Return the lines about the checkpoints that MMEngine's hook has noted in the message hub."""
    lines = []
    if 'last_ckpt' in known:
        lines.append(f'last         {known["last_ckpt"]}')
    for name, path in known.items():
        if name.startswith('best_ckpt'):  # one for each metric of save_best
            score = known[name.replace('best_ckpt', 'best_score')]
            lines.append(f'best         {path} ({score:.4g} in validation)')
    return lines


def optimizer_text(optim_wrapper: Any) -> str:
    """Return the optimizer's class and its learning rates before the schedule changes them."""
    wrappers = [optim_wrapper]
    if isinstance(optim_wrapper, OptimWrapperDict):
        wrappers = list(optim_wrapper.values())
    names = []
    rates = set()
    for wrapper in wrappers:
        names.append(type(wrapper.optimizer).__name__)
        for group in wrapper.optimizer.param_groups:
            rates.add(float(group.get('initial_lr', group['lr'])))
    text = f'{min(rates):.3g}'
    if len(rates) > 1:
        text += f' to {max(rates):.3g}'
    return f'{", ".join(names)}, learning rate {text}'
