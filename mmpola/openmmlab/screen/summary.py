"""Lines about a training run or an evaluation: model, device, length, optimizer, checkpoints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size
from mmengine.hooks import EarlyStoppingHook
from mmengine.optim import OptimWrapperDict
from mmengine.visualization import LocalVisBackend
from torch import nn

from mmpola.messages import counted
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.run.advice import is_by_epoch
from mmpola.openmmlab.screen.curves import CURVES
from mmpola.openmmlab.screen.first_batch import FIRST_BATCH
from mmpola.openmmlab.screen.rows import value_text

WITHOUT_WHOLE_EXPORT = ('DetectionTransformer', 'MaskFormer')
"""Bases of DINO and Mask2Former, of which `mmpola export` writes only the backbone."""


def logs_scalars(runner: Any) -> bool:
    """Whether MMEngine writes `scalars.json`, from which curves are drawn."""
    backends = runner.visualizer._vis_backends.values()
    return any(isinstance(backend, LocalVisBackend) for backend in backends)


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
        validations = validations_text(runner.val_interval, runner.max_epochs, 'epoch')
    else:
        length = f'{runner.max_iters} in all'
        validations = validations_text(runner.val_interval, runner.max_iters, 'step')
    length += f', {counted(images, "image")} each'
    if runner._val_loop is not None:
        length += f'; validation {validations}'
    if runner.iter > 0:
        length += f'; continues after step {runner.iter}'
    pictures = f'{Path(runner.work_dir)}: {FIRST_BATCH}'
    if logs_scalars(runner):
        pictures += f', and {CURVES} after each validation'
    return [
        f'steps        {length}',
        f'optimizer    {optimizer_text(runner.optim_wrapper)}{scaling_text(runner)}',
        f'pictures     {pictures}',
    ]


def validations_text(interval: int, length: int, unit: str) -> str:
    """Return when validations come in a run of this length; MMEngine validates at the end, too."""
    times = []
    if interval <= length:
        times.append(f'after every {counted(interval, unit).removeprefix("1 ")}')
    if length % interval > 0:
        times.append('at the end')
    return ' and '.join(times)


def checkpoint_lines(known: dict[str, Any]) -> list[str]:
    """Return the lines about the checkpoints that MMEngine's hook has noted in the message hub."""
    lines = []
    if 'last_ckpt' in known:
        lines.append(f'last         {known["last_ckpt"]}')
    for name, path in known.items():
        if name.startswith('best_ckpt'):  # one for each metric of save_best
            score = known[name.replace('best_ckpt', 'best_score')]
            lines.append(f'best         {path} ({value_text(score)} in validation)')
    return lines


def stop_lines(runner: Any) -> list[str]:
    """Return the line about a hook that has ended a training run before its end."""
    done, length, unit = runner.iter, runner.max_iters, 'step'
    if is_by_epoch(runner.train_loop):
        done, length, unit = runner.epoch, runner.max_epochs, 'epoch'
    if done >= length:
        return []
    text = f'stopped      after {unit} {done:,} of {length:,}'
    for hook in runner.hooks:
        if isinstance(hook, EarlyStoppingHook):
            text += f', as EarlyStoppingHook found {hook.monitor} no better than '
            text += value_text(hook.best_score)
    return [text]


def next_lines(runner: Any) -> list[str]:
    """Return the commands that come after a training run, with its best checkpoint.

    They name the config that the run has written, which has its --cfg-options. The picture to
    predict is the first of validation, or of training; without pictures only `test` is left.
    """
    known = runner.message_hub.runtime_info
    work_dir = from_here(runner.work_dir)
    config = work_dir / Path(runner.cfg.filename or '').name
    checkpoint = known.get('last_ckpt')
    for name, path in known.items():
        if name.startswith('best_ckpt'):
            checkpoint = path
            break
    if checkpoint is None or not config.is_file():
        return []
    model = [str(config), str(from_here(checkpoint))]
    commands = []
    if runner.cfg.get('test_dataloader'):
        commands.append(['test', *model])
    picture = first_picture(runner)
    if picture is not None:
        commands.append(['predict', *model, picture, '--out', str(work_dir / 'predictions')])
        bases = [kind.__name__ for kind in type(unwrapped(runner.model)).__mro__]
        export = ['export', *model, str(work_dir / 'model.onnx')]
        if set(bases) & set(WITHOUT_WHOLE_EXPORT):
            export.append('--backbone')
        commands.append(export)
    lines = [f'             mmpola {shlex.join(words)}' for words in commands]
    if lines:
        lines[0] = lines[0].replace('    ', 'next', 1)
    return lines


def from_here(path: str) -> Path:
    """Return a path relative to the working directory if it is below that."""
    here = Path.cwd()
    if Path(path).is_relative_to(here):
        return Path(path).relative_to(here)
    return Path(path)


def first_picture(runner: Any) -> str | None:
    """Return the file of the first image of validation, or of training; None if it has none."""
    loader = runner.train_dataloader
    if runner._val_loop is not None:
        loader = runner.val_dataloader
    if not hasattr(loader.dataset, 'get_data_info'):
        return None
    path: str | None = loader.dataset.get_data_info(0).get('img_path')
    return path


def scaling_text(runner: Any) -> str:
    """Return how MMEngine has scaled the learning rate; '' if it has not."""
    scaling = runner.auto_scale_lr or {}
    if not scaling.get('enable'):
        return ''
    images = runner.cfg.train_dataloader['batch_size'] * get_world_size()
    factor = images / scaling['base_batch_size']
    written = runner.cfg.optim_wrapper.get('optimizer', {}).get('lr')
    text = f'scaled by {factor:g} for the batch size'
    if written is not None:
        text = f'{written:g} in the config, {text}'
    return f' ({text})'


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
