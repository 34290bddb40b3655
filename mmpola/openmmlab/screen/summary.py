"""Lines about a training run or an evaluation: model, device, length, optimizer, checkpoints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_world_size
from mmengine.optim import OptimWrapperDict
from mmengine.visualization import LocalVisBackend
from torch import nn

from mmpola.messages import counted
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.run.advice import is_by_epoch
from mmpola.openmmlab.screen.curves import CURVES
from mmpola.openmmlab.screen.first_batch import FIRST_BATCH_FILE
from mmpola.openmmlab.screen.rows import value_text

WITHOUT_WHOLE_EXPORT = ('DetectionTransformer', 'MaskFormer')
"""Bases of DINO and Mask2Former; `mmpola export` writes their backbones only."""


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
    loader = runner.train_dataloader
    images = getattr(loader.batch_sampler, 'batch_size', 0) * get_world_size()
    unit = 'step'
    length = runner.max_iters
    steps = f'{runner.max_iters} in all'
    if is_by_epoch(runner.train_loop):
        unit = 'epoch'
        length = runner.max_epochs
        steps = f'{len(loader)} an epoch, {counted(length, unit)}, {steps}'
    steps += f', {counted(images, "image")} each'
    if runner._val_loop is not None:
        interval = min(runner.val_interval, length)  # MMEngine also validates at the end
        steps += f'; validation after every {counted(interval, unit).removeprefix("1 ")}'
    if runner.iter > 0:
        steps += f'; continues after step {runner.iter}'
    pictures = f'{Path(runner.work_dir)}: {FIRST_BATCH_FILE}'
    if logs_scalars(runner):
        pictures += f', and {CURVES} after each validation'
    return [
        f'steps        {steps}',
        f'optimizer    {optimizer_text(runner)}',
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
            lines.append(f'best         {path} ({value_text(score)} in validation)')
    return lines


def stop_lines(runner: Any) -> list[str]:
    """Return the line about a training run that a hook has ended early."""
    done, length, unit = runner.iter, runner.max_iters, 'step'
    if is_by_epoch(runner.train_loop):
        done, length, unit = runner.epoch, runner.max_epochs, 'epoch'
    if done >= length:
        return []
    return [f'stopped      after {unit} {done:,} of {length:,}']


def best_checkpoints(runner: Any) -> list[Any]:
    """Return the paths of the best checkpoints that MMEngine's hook has noted so far."""
    known = runner.message_hub.runtime_info
    return [path for name, path in known.items() if name.startswith('best_ckpt')]


def next_lines(runner: Any) -> list[str]:
    """Return the commands that come after a training run, with its best checkpoint.

    They name the config that the run has written, which has its --cfg-options. The picture to
    predict is the first of validation, or of training; without pictures only `test` is left.
    """
    checkpoint = runner.message_hub.runtime_info.get('last_ckpt')
    best = best_checkpoints(runner)
    if best:
        checkpoint = best[0]
    work_dir = from_here(runner.work_dir)
    config = work_dir / Path(runner.cfg.filename or '').name
    if checkpoint is None or not config.is_file():
        return []
    model = [str(config), str(from_here(checkpoint))]
    commands = []
    if runner.cfg.get('test_dataloader'):
        commands.append(['test', *model])
    picture = first_picture(runner)
    if picture is not None:
        commands.append(['predict', *model, picture, '--out', str(work_dir / 'predictions')])
        commands.append(['export', *model, str(work_dir / 'model.onnx')])
        bases = [kind.__name__ for kind in type(unwrapped(runner.model)).__mro__]
        if set(bases) & set(WITHOUT_WHOLE_EXPORT):
            commands[-1].append('--backbone')
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


def optimizer_text(runner: Any) -> str:
    """Return the optimizer's class and its learning rates before the schedule changes them."""
    wrappers = [runner.optim_wrapper]
    if isinstance(runner.optim_wrapper, OptimWrapperDict):
        wrappers = list(runner.optim_wrapper.values())
    names = [type(wrapper.optimizer).__name__ for wrapper in wrappers]
    groups = [group for wrapper in wrappers for group in wrapper.optimizer.param_groups]
    rates = {float(group.get('initial_lr', group['lr'])) for group in groups}
    text = f'{", ".join(names)}, learning rate {min(rates):.3g}'
    if len(rates) > 1:
        text += f' to {max(rates):.3g}'
    if (runner.auto_scale_lr or {}).get('enable'):
        written = runner.cfg.optim_wrapper.get('optimizer', {}).get('lr', 'the default')
        text += f' ({written} in the config, scaled for the batch size)'
    return text
