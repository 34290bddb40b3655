"""MMEngine configs: reading them, overriding them from the command line, and walking through them."""

from __future__ import annotations

import argparse
import inspect
import os
import re
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, DictAction
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.runner import Runner

from mmpola.config_tree import leaves, nodes
from mmpola.messages import UsageError, info, listed, suggestion

MODULE2PACKAGE['mmseg'] = 'mmseg'
"""MMEngine finds a base config `mmseg::` by the module, whichever distribution brought it: mmsegmentation or a fork."""

SPLITS = ('train', 'val', 'test')

READ = {
    *inspect.signature(Runner).parameters,
    *(
        'activation_checkpointing',
        'compile',
        'efficient_conv_bn_eval',
        'find_unused_parameters',
        'model_wrapper_cfg',
    ),
    *('sync_bn', 'custom_imports', 'tta_model', 'tta_pipeline'),
}
"""Keys of a config that MMEngine's Runner, or a script of OpenMMLab, reads; others are variables inside the file."""

PLAIN = {
    'auto_scale_lr': ('enable', 'base_batch_size'),
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
    'randomness': ('seed', 'diff_rank_seed', 'deterministic'),
}
"""What MMEngine reads of the dicts that are not the arguments of a class."""

DICT = re.compile(r'(^|[\[(,])\s*(dict\(|\{)')
"""A dict in the value of an option, which MMEngine would read as text, or for ever."""

BEGINS_LIKE_A_NUMBER = re.compile(r'[-+]?\.?\d')

CHECKPOINT_HELP = (
    'weights of the model: a path, URL or name such as mmpola://pola_swin_tiny, see docs/weights.md'
)


class OptionsAction(DictAction):
    """MMEngine's `DictAction`, which reports what it cannot read as a `UsageError`."""

    def __call__(self, *arguments: Any) -> None:
        """Add the values of `KEY=VALUE …` to those of earlier occurrences of the option."""
        for entry in arguments[2]:
            key, _, value = entry.partition('=')
            if DICT.search(value):
                place = f'{key}.0' if value.startswith(('[', '(')) else key
                rule = 'a number, name, list or tuple, or the entries of a dict one by one'
                raise UsageError(
                    f'--cfg-options: {key}: expected {rule} ({place}.NAME=VALUE), got {value}'
                )
        try:
            super().__call__(*arguments)
        except (AssertionError, ValueError):
            raise UsageError(
                f'--cfg-options: expected KEY=VALUE, got {listed(arguments[2], None)}'
            ) from None


def add_options_argument(parser: argparse.ArgumentParser) -> None:
    """Add --cfg-options, which every script has that reads a config."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=OptionsAction,
        metavar='KEY=VALUE',
        help='override settings of the config, e.g. model.backbone.init_cfg=None optim_wrapper.optimizer.lr=2e-4',
    )
    parser.set_defaults(work_dir=None, launcher='none')  # for `load_config`


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that OpenMMLab's scripts for training and testing have."""
    parser.add_argument(
        '--work-dir', help='folder for logs and checkpoints (default: work_dirs/CONFIG_NAME)'
    )
    add_options_argument(parser)
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none')


def add_compile_argument(parser: argparse.ArgumentParser) -> None:
    """Add --compile, whose value is None or the name of a backend of torch.compile."""
    parser.add_argument(
        '--compile',
        nargs='?',
        const='inductor',
        metavar='BACKEND',
        help='compile the backbone with torch.compile (default backend: inductor); the first steps take minutes',
    )


def load_config(args: argparse.Namespace) -> Config:
    """Read the config file, apply `--cfg-options` and `--launcher`, and set the work dir.

    Raises:
        UsageError: the file does not exist, is a base of its own or cannot be read with its bases,
            or an option has no place in it.
    """
    if not Path(args.config).is_file():
        raise UsageError(f'{args.config}: no such config file')
    check_bases(Path(args.config))
    try:
        cfg = Config.fromfile(args.config)
    except Exception as error:  # a config is a program, which can raise anything
        raise UsageError(
            f'{args.config}: expected a config, got {type(error).__name__}: {error}'
        ) from error
    cfg.launcher = args.launcher
    if args.cfg_options is not None:
        apply_options(cfg, args.cfg_options)
    _switch_off_persistent_workers(cfg)
    _save_plain_files(cfg)
    cfg.work_dir = (
        args.work_dir or cfg.get('work_dir') or str(Path('work_dirs') / Path(args.config).stem)
    )
    return cfg


def check_bases(config: Path, above: tuple[Path, ...] = ()) -> None:
    """Raise UsageError if a config file inherits from itself; MMEngine would read it until the stack is full.

    Bases of other packages, such as `mmdet::…`, and files that cannot be read are left to MMEngine.

    Args:
        config: the file.
        above: the files that inherit from it, the first one outermost.
    """
    path = Path(os.path.abspath(config))  # names in the message stay those of the user's links
    chain = (*above, path)
    if path in above:
        cycle = ' -> '.join(file.name for file in chain[above.index(path) :])
        raise UsageError(
            f'{above[0]}: expected _base_ files that do not inherit from each other, got {cycle}'
        )
    try:
        bases = Config._get_base_files(str(path))
    except Exception:  # a config is a program, which can raise anything
        return
    for base in bases:
        if isinstance(base, str) and '::' not in base:
            check_bases(path.parent / base, chain)


def is_variable(cfg: Config, name: str) -> bool:
    """Return whether a top-level key of a config is not read by MMEngine, but used in the text of its files."""
    return (
        name not in READ and re.search(rf'\b{re.escape(name)}\b(?!\s*=[^=])', cfg.text) is not None
    )


def apply_options(cfg: Config, options: dict[str, Any]) -> None:
    """Write `options`, values by dotted key, into a config.

    Raises:
        UsageError: a key leads to nothing in the config that could be read, or to a variable, which
            the file has been computed from already.
    """
    for key in options:
        _check_option(cfg, key, options)
    try:
        cfg.merge_from_dict(options)
    except (AttributeError, TypeError) as error:  # one option leads through the value of another
        raise UsageError(f'--cfg-options: {error}') from None


def _check_option(cfg: Config, key: str, options: dict[str, Any]) -> None:
    """Raise UsageError unless a key exists, or is new where names are checked later: among the arguments of a class.

    A number must stay one.
    """
    names, node = key.split('.'), cfg._cfg_dict
    if is_variable(cfg, names[0]):
        raise UsageError(
            f'--cfg-options: {key}: expected a key that is read later, got {names[0]}, a variable of the config file; '
            'set the keys that are computed from it'
        )
    checked = {'default_hooks', *PLAIN, *(f'{split}_dataloader' for split in SPLITS)}
    for depth, name in enumerate(names):
        above = '.'.join(names[:depth])
        if name == '_delete_' or f'{above}._delete_' in options:
            return
        if isinstance(node, list) and (not name.isdigit() or int(name) >= len(node)):
            raise UsageError(
                f'--cfg-options: {key}: expected an index below {len(node)} after {above}, got {name}'
            )
        if not isinstance(node, (dict, list)):
            raise UsageError(
                f'--cfg-options: {key}: expected a dict or list at {above}, got {node!r}'
            )
        if isinstance(node, dict) and name not in node:
            if not (name in READ if not depth else 'type' in node or above in checked):
                known = node if depth else {*node, *READ}
                meant = suggestion(name, known)
                raise UsageError(
                    f'--cfg-options: {key}: expected a key of {above or "the config"}, got {name}{meant}'
                )
            return
        node = node[int(name)] if isinstance(node, list) else node[name]
    value = options[key]
    if type(node) in (int, float) and isinstance(value, str) and BEGINS_LIKE_A_NUMBER.match(value):
        raise UsageError(
            f'--cfg-options: {key}: expected a number, as {node} in the config, got {value}'
        )


def _switch_off_persistent_workers(cfg: Config) -> None:
    """Set `persistent_workers` to False, and say so, in loaders without workers, where torch refuses it."""
    for key, loader in nodes(cfg._cfg_dict, ''):
        if loader.get('persistent_workers') and loader.get('num_workers') == 0:
            loader['persistent_workers'] = False
            print(f'{key}.persistent_workers: switched off, because num_workers is 0')


def _save_plain_files(cfg: Config) -> None:
    """Replace MMEngine's CheckpointHook, whose files torch.load refuses, by ours with the same arguments."""
    hook = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    if hook.get('type') == 'CheckpointHook' and not hook.get(
        'backend_args'
    ):  # ours writes to local folders
        hook['type'] = 'mmpola.AtomicCheckpointHook'


def apply_arguments(cfg: Config, args: argparse.Namespace) -> None:
    """Write --amp, --auto-scale-lr and --resume into the config.

    Raises:
        UsageError: --amp in float16 without a GPU, or in bfloat16 for a model of mmdet; or no
            auto_scale_lr in the config.
    """
    if args.amp:
        on_gpu = torch.cuda.is_available()
        if args.amp == 'bfloat16' and cfg.get('default_scope') == 'mmdet':
            raise UsageError(
                '--amp: expected float16 for a model of mmdet, got bfloat16, which the operators of mmcv '
                '(RoIAlign, focal loss, deformable attention) do not support'
            )
        if args.amp == 'float16' and not on_gpu:
            raise UsageError(
                '--amp: expected a GPU for float16, but torch finds none; on a CPU classifiers, '
                'segmenters and sequences train with --amp bfloat16'
            )
        if on_gpu:
            cfg.optim_wrapper.type = 'AmpOptimWrapper'
            cfg.optim_wrapper.dtype = args.amp
            # bfloat16 has the range of float32, in which no gradient needs a scale
            cfg.optim_wrapper.loss_scale = 'dynamic' if args.amp == 'float16' else 1.0
        else:
            cfg.optim_wrapper.type = 'mmpola.BFloat16OptimWrapper'
            for name in ('dtype', 'loss_scale'):  # of an AmpOptimWrapper in the config
                cfg.optim_wrapper.pop(name, None)
    if args.auto_scale_lr:
        if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
            raise UsageError(
                f'{args.config}: --auto-scale-lr needs auto_scale_lr.base_batch_size in the config'
            )
        cfg.auto_scale_lr.enable = True
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume


def request_compilation(cfg: Config, backend: str | None) -> None:
    """Add the hook that compiles the backbone to the config; without a backend, leave the config as it is."""
    if backend is not None:
        hook = dict(type='mmpola.CompileBackboneHook', backend=backend)
        cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), hook]


def evaluation_transform(cfg: Config) -> dict[str, Any]:
    """Return the arguments of timm's transforms for the test images of a classifier, `input_size` among them.

    They are those of the first test data; of data without such arguments, timm's defaults apply.
    """
    dataset: dict[str, Any] = (
        next(leaves(cfg.test_dataloader.dataset)) if 'test_dataloader' in cfg else {}
    )
    given = dataset.get('transform')
    if not isinstance(given, dict):
        info(
            "test_dataloader.dataset.transform: no arguments for timm's transforms; its defaults are used"
        )
        given = {}
    return {'input_size': cfg.model.backbone.get('pretrain_img_size', 224), **given}


def draw_predictions(cfg: Config, folder: str) -> None:
    """Make the config's visualisation hook write one drawing per test image into `folder` or below it.

    Raises:
        UsageError: the config has no such hook.
    """
    hook = cfg.default_hooks.get('visualization')
    if hook is None:
        raise UsageError('--show-dir: the config has no default_hooks.visualization')
    folder = str(
        Path(folder).resolve()
    )  # MMEngine joins a relative folder to the work dir and a time stamp
    hook.update(draw=True, interval=1)
    if cfg.default_scope == 'mmdet':
        hook.test_out_dir = folder
    else:  # mmseg's hook leaves the folder to the visualizer, which writes to FOLDER/vis_data/vis_image
        cfg.visualizer.save_dir = folder
