"""Configs of MMEngine: reading them, what the command line changes, and where MMEngine needs help to run them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, DictAction

from mmpola.checkpoint.reading import PUBLISHED, allow_training_checkpoints
from mmpola.messages import UsageError


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every OpenMMLab launcher script."""
    parser.add_argument('--work-dir', help='folder for logs and checkpoints (default: work_dirs/CONFIG_NAME)')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override settings of the config, e.g. model.backbone.init_cfg=None optim_wrapper.optimizer.lr=2e-4',
    )
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none')


def load_config(args: argparse.Namespace) -> Config:
    """The config file with the command line's overrides and a work dir.

    Raises:
        UsageError: the file does not exist.
    """
    if not Path(args.config).is_file():
        raise UsageError(f'{args.config}: no such config file')
    cfg = Config.fromfile(args.config)
    cfg.launcher = args.launcher
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    cfg.work_dir = args.work_dir or cfg.get('work_dir') or str(Path('work_dirs') / Path(args.config).stem)
    return cfg


def prepare_process(cfg: Config) -> None:
    """Make checkpoints of MMEngine readable and a CPU process group possible."""
    allow_training_checkpoints()
    if cfg.launcher == 'pytorch' and not torch.cuda.is_available():
        # MMEngine's launcher calls torch.cuda.set_device; it skips that where a process group already exists, and its
        # DDP wrapper passes device_ids, which a model on the CPU refuses.
        torch.distributed.init_process_group('gloo')
        if _replace_sync_bn(cfg.model):
            print('no GPU: SyncBN, which needs CUDA, is replaced by BN; each process normalises its own images')
        cfg.model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False)


def nodes(node: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dict inside a config, outermost first, with its dotted key, that of `node` being `key`."""
    children: Iterable[tuple[Any, Any]] = enumerate(node) if isinstance(node, (list, tuple)) else ()
    if isinstance(node, dict):
        yield key, node
        children = node.items()
    for name, child in children:
        yield from nodes(child, f'{key}.{name}')


def leaves(dataset: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The data sets inside wrappers."""
    if 'dataset' in dataset:
        yield from leaves(dataset['dataset'])
    elif 'datasets' in dataset:
        for inner in dataset['datasets']:
            yield from leaves(inner)
    else:
        yield dataset


def _replace_sync_bn(model: Any) -> int:
    """Turn every norm_cfg of type SyncBN inside a model's config into BN; returns how many."""
    found = [node for _, node in nodes(model, 'model') if node.get('type') == 'SyncBN']
    for node in found:
        node['type'] = 'BN'
    return len(found)


def apply_arguments(cfg: Config, args: argparse.Namespace) -> None:
    """Write --amp, --auto-scale-lr and --resume into the config.

    Raises:
        UsageError: --amp without a GPU, no auto_scale_lr in the config, or no such checkpoint to resume from.
    """
    if args.amp:
        if not torch.cuda.is_available():
            raise UsageError('--amp: mixed precision in fp16 needs a GPU, and torch finds none')
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.loss_scale = 'dynamic'
    if args.auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            raise UsageError(f'{args.config}: --auto-scale-lr needs auto_scale_lr.base_batch_size in the config')
        cfg.auto_scale_lr.enable = True
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume
        if cfg.load_from and not Path(cfg.load_from).is_file():
            raise UsageError(f'--resume: {cfg.load_from}: no such checkpoint')


def check_pretrained(cfg: Config) -> None:
    """Raise UsageError if weights that the config starts from are not there, before data or model are touched."""
    for key, node in nodes(cfg.model, 'model'):
        start = node.get('init_cfg')
        if not isinstance(start, dict) or start.get('type') != 'Pretrained':
            continue
        path = start['checkpoint']
        if '://' not in path and not Path(path).is_file():
            raise UsageError(
                f'{path}: no such checkpoint ({key}.init_cfg.checkpoint; {PUBLISHED}); '
                f'train without it by --cfg-options {key}.init_cfg=None'
            )


def draw_predictions(cfg: Config, folder: str) -> None:
    """Make the config's visualisation hook write one picture per test image below `folder`.

    Raises:
        UsageError: the config has no such hook.
    """
    hook = cfg.default_hooks.get('visualization')
    if hook is None:
        raise UsageError('--show-dir: the config has no default_hooks.visualization')
    folder = str(Path(folder).resolve())  # relative folders would be joined to the work dir and a time stamp
    hook.update(draw=True, interval=1)
    if cfg.default_scope == 'mmdet':
        hook.test_out_dir = folder
    else:  # mmseg's hook leaves the place to the visualiser: FOLDER/vis_data/vis_image
        cfg.visualizer.save_dir = folder
