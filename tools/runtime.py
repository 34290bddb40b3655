"""What train.py and test.py share: reading the config, and the places where MMEngine needs help to run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config, DictAction
from mmengine.logging import HistoryBuffer


class UsageError(Exception):
    """What the user gave cannot work; the message says what, and what to do."""


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


def _replace_sync_bn(model: Any) -> int:
    """Turn every norm_cfg of type SyncBN inside a model's config into BN; returns how many."""
    found = [node for _, node in nodes(model, 'model') if node.get('type') == 'SyncBN']
    for node in found:
        node['type'] = 'BN'
    return len(found)


def allow_training_checkpoints() -> None:
    """Let torch.load, which since 2.6 reads weights only, take the log history that MMEngine's Runner saves."""
    if torch.__version__ < '2.6':  # a TorchVersion, compared by number
        return
    scalars = [type(np.dtype(name)) for name in ('float64', 'float32', 'int64', 'int32', 'bool')]
    multiarray = np._core.multiarray if hasattr(np, '_core') else np.core.multiarray
    torch.serialization.add_safe_globals(
        [
            HistoryBuffer,
            multiarray._reconstruct,
            multiarray.scalar,
            np.ndarray,
            np.dtype,
            *scalars,
            (_history_method, 'builtins.getattr'),
        ]
    )


def _history_method(owner: object, name: str) -> object:
    """Stands for `getattr` in checkpoints: the log history refers to its own methods by it, nothing else may."""
    if owner is not HistoryBuffer:
        raise TypeError(f'a checkpoint may look up methods of HistoryBuffer only, not {name} of {owner!r}')
    return getattr(owner, name)


def run_main(main: object) -> None:
    """Run a script's main(); what the user can mend ends in one line and exit status 2, not in a traceback."""
    os.environ.setdefault('LOCAL_RANK', '0')
    try:
        main()  # type: ignore[operator]
    except UsageError as error:
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)
