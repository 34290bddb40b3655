"""Read an MMEngine config, and change it as the arguments of a script say."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import stat
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from mmengine.config import Config, DictAction
from mmengine.config.lazy import LazyAttr, LazyObject
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner import FlexibleRunner, Runner
from mmengine.utils import get_object_from_string

from mmpola.command import missing_config
from mmpola.messages import UsageError, first_line, listed
from mmpola.openmmlab.config.contents import nodes, skipped_checks
from mmpola.openmmlab.config.types import library, type_class
from mmpola.openmmlab.processes import place
from mmpola.registry import EARLIER_MODULES

MODULE2PACKAGE['mmseg'] = 'mmseg'  # bases `mmseg::…` are found by module, of a fork, too

READ_KEYS = {
    *inspect.signature(Runner).parameters,
    *inspect.signature(FlexibleRunner).parameters,
    'activation_checkpointing',
    'compile',
    'data_checks',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'init_weights_for_test_or_val',
    'model_wrapper_cfg',
    'runner_type',
    'sync_bn',
}
"""First words of the keys that MMEngine's runners or our checks of data read."""


RUN_PARTS = {
    'train': ('train_dataloader', 'train_cfg', 'optim_wrapper'),
    'val': ('val_dataloader', 'val_cfg', 'val_evaluator'),
    'test': ('test_dataloader', 'test_cfg', 'test_evaluator'),
}
"""Keys of a config that MMEngine's Runner takes together or not at all."""

PLAIN = (bool, int, float, str, LazyAttr, LazyObject)
"""Types of values that the text of a config holds; the last two stand for classes."""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and CHECKPOINT, for a script that runs a trained model."""
    parser.add_argument('config', help='config file')
    parser.add_argument(
        'checkpoint',
        help='weights of the model: a path, URL or name such as mmpola://pola_swin_tiny, see '
        'docs/weights.md',
    )


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Add --device, by default a GPU if there is one."""
    parser.add_argument(
        '--device', default=get_device(), help='cpu, cuda:1 … (default: a GPU if there is one)'
    )


def add_options_argument(parser: argparse.ArgumentParser) -> None:
    """Add --cfg-options, for a script that reads a config."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override settings of the config, e.g. model.backbone.init_cfg=None '
        'optim_wrapper.optimizer.lr=2e-4',
    )


def add_compile_argument(parser: argparse.ArgumentParser) -> None:
    """Add --compile: the name of a backend of torch.compile, or None to compile nothing."""
    parser.add_argument(
        '--compile',
        nargs='?',
        const='inductor',
        metavar='BACKEND',
        help='compile the backbone with torch.compile (default backend: inductor); the first steps '
        'take minutes',
    )


def load_config(args: argparse.Namespace) -> Config:
    """Read the config file and apply the arguments that change it.

    Args:
        args: the script's arguments: `config`, `cfg_options` and, if it has them, `skip_checks`,
            `launcher` and `work_dir`.

    Raises:
        UsageError: the file does not exist, or it or one of its bases cannot be read; or a part of
            the config has another type than MMEngine's Runner takes.
    """
    if not Path(args.config).is_file():
        raise UsageError(missing_config(args.config))
    try:
        cfg = Config.fromfile(args.config)
        leave_out_helpers(cfg)
        complete_types(cfg)
    except Exception as error:  # a config is a program, which can raise anything
        message = first_line(error)
        for earlier, module in EARLIER_MODULES.items():
            if isinstance(error, ImportError) and re.search(rf'\b{earlier}\b', message):
                message += f'; {earlier} is now {module}'
        raise UsageError(f'{args.config}: {message}') from error
    if args.cfg_options is not None:
        apply_options(cfg, args.cfg_options)
    check_types(cfg)
    skipped = [*skipped_checks(cfg), *getattr(args, 'skip_checks', [])]
    if skipped:
        cfg.data_checks = {'skip': skipped}
    for split in ('train', 'val', 'test'):
        loader = cfg.get(f'{split}_dataloader') or {}
        if loader.get('num_workers') == 0:
            loader['persistent_workers'] = False  # torch refuses them without workers
    cfg.launcher = getattr(args, 'launcher', 'none')
    default_work_dir = str(Path('work_dirs') / Path(args.config).stem)
    cfg.work_dir = getattr(args, 'work_dir', None) or cfg.get('work_dir') or default_work_dir
    return cfg


def check_types(cfg: Config) -> None:
    """Raise UsageError if a part of a config has another type than MMEngine's Runner takes.

    Which types it takes, its constructor says; it also takes tuples for lists.
    """
    for key, hint in get_type_hints(Runner.__init__).items():
        choices = [get_origin(choice) or choice for choice in get_args(hint) or (hint,)]
        names = [kind.__name__ for kind in (dict, list) if kind in choices]
        value = cfg.get(key)
        if isinstance(value, tuple):
            value = list(value)
        if names and key in cfg and key != 'cfg' and not isinstance(value, tuple(choices)):
            raise UsageError(f'{key}: expected a {" or a ".join(names)}, got {value!r:.60}')


def check_parts(cfg: Config, needed: str | None = None) -> None:
    """Raise UsageError if a config lacks a data set, or a part that MMEngine takes beside others.

    Args:
        cfg: what `load_config` returned.
        needed: 'train' or 'test', which the script runs in `work_dir`; None: it only reads data.
    """
    for split, keys in RUN_PARTS.items():
        absent = [key for key in keys if cfg.get(key) is None]
        if needed and absent and (split == needed or len(absent) < len(keys)):
            others = [key for key in keys if key != absent[0]]
            raise UsageError(
                f'{absent[0]}: expected it beside {" and ".join(others)}, got None; only all three '
                'can be None'
            )
        loader = cfg.get(f'{split}_dataloader')
        if isinstance(loader, dict) and not isinstance(loader.get('dataset'), dict):
            got = loader.get('dataset')
            raise UsageError(f'{split}_dataloader.dataset: expected a dict, got {got!r:.60}')
    if needed is not None:
        check_work_dir(cfg.work_dir)


def check_work_dir(name: Any) -> None:
    """Raise UsageError if `work_dir` cannot be a folder, or would break the lines that name it."""
    problem = None
    if not isinstance(name, str) or not name.isprintable() or str(Path(name)).startswith('-'):
        problem = 'a name that is text in one line, without - in front'
    else:
        try:
            if not stat.S_ISDIR(os.stat(name).st_mode):
                problem = 'a folder, found a file'
        except FileNotFoundError:
            if os.path.islink(name):
                problem = 'a folder, found a link to nothing'
        except OSError as error:  # a name that is too long, a loop of links
            problem = f'a folder, found none ({error.strerror})'
    if problem is not None:
        raise UsageError(f'work_dir, --work-dir: expected {problem}, got {name!r:.80}')


def complete_types(cfg: Config) -> None:
    """Make the types of pure-Python configs, and of dumped ones, resolvable.

    A config without a scope gets its model's library as scope: mmdet's and mmseg's classes build
    their parts by name, and MMEngine would look for them in its own scope.
    """
    find_hidden_classes(cfg)
    model = cfg.get('model')
    if cfg.get('default_scope') is not None or not isinstance(model, dict):
        return
    if 'default_scope' in cfg or not isinstance(model.get('type'), (str, NoneType)):
        cfg.default_scope = library(cfg)


def find_hidden_classes(cfg: Config) -> None:
    """Find classes by full names, as runs write them, where a function hides the module.

    MMEngine takes `mmdet.models.losses.smooth_l1_loss` for the function of that name, and does not
    find the class L1Loss in the module.
    """
    for _, node in nodes(cfg._cfg_dict, ''):
        kind = node.get('type')
        module, _, name = kind.rpartition('.') if isinstance(kind, str) else ('', '', '')
        if '.' in module and not hasattr(get_object_from_string(module), name):
            with suppress(ImportError):
                if hasattr(import_module(module), name):
                    node['type'] = LazyObject(module, name)


def leave_out_helpers(cfg: Config) -> None:
    """Remove the file's variables that nothing reads and no text of a config can hold.

    The config that a run writes, and the one in its checkpoints, could not be read with them:
    `environ = __import__('os').environ` would be written as a call of `environ`, with all variables
    of the process.
    """
    for key, value in list(dict.items(cfg._cfg_dict)):  # without importing what a LazyObject names
        is_text = isinstance(value, (dict, list, tuple, NoneType)) or type(value) in PLAIN
        if key not in READ_KEYS and not is_text:
            cfg.pop(key)


def apply_options(cfg: Config, options: dict[str, Any]) -> None:
    """Write options (values by dotted key) into a config.

    A line is printed for an option that sets a variable of the file, such as `data_root`, since
    what the file has computed from it keeps the old value, and for a new key that resembles one
    beside it.

    Raises:
        UsageError: nothing reads an option: its first word is neither MMEngine's nor the file's;
            its value is 'none' or 'null', which MMEngine takes for text, and text counts as True;
            or it names an entry that a list does not have, or sets a key of what is no dict.
    """
    for key, value in options.items():
        words = key.split('.')
        if words[0] not in READ_KEYS and words[0] not in cfg:
            raise UsageError(
                f'--cfg-options: expected a key of MMEngine or of the config, got {key}'
            )
        if value in ('none', 'null'):
            raise UsageError(f'--cfg-options: expected {key}=None, got {key}={value}')
        if words[0] not in READ_KEYS:
            print(
                f'--cfg-options: {key}: does not change what the file has computed from {words[0]}'
            )
        for name in _resembled(cfg, words):
            print(f'--cfg-options: {key}: is new; did you mean {name}?')
    try:
        cfg.merge_from_dict(options)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UsageError(f'--cfg-options: {listed(options)}: {error.args[0]}') from error


def _resembled(cfg: Config, words: list[str]) -> list[str]:
    """Return the key that a new one resembles, in a dict that no constructor gets as arguments.

    Constructors refuse names that they do not know; settings such as `test_cfg` are only looked up.
    """
    node: Any = cfg
    for word in words:
        if not isinstance(node, (dict, Config)):
            return []
        if word not in node:
            if 'type' in node:
                return []
            return get_close_matches(word, node.keys(), n=1, cutoff=0.85)
        node = node[word]
    return []


def use_mixed_precision(cfg: Config, dtype: str) -> None:
    """Let the config's optimizer wrapper compute the forward pass in `dtype`.

    Raises:
        UsageError: float16 without a GPU.
    """
    on_gpu = torch.cuda.is_available()
    wrapper = cfg.optim_wrapper
    if dtype == 'float16' and not on_gpu:
        raise UsageError('--amp: float16 needs a GPU, and torch finds none; use --amp bfloat16')
    if dtype == 'bfloat16':
        _add_hook(cfg, dict(type='mmpola.Float32SamplingHook'))
    if not on_gpu:
        wrapper.type = 'mmpola.BFloat16OptimWrapper'
        wrapper.pop('dtype', None)  # an argument of the config's AmpOptimWrapper
        wrapper.pop('loss_scale', None)
        return
    wrapper.type = 'AmpOptimWrapper'
    wrapper.dtype = dtype
    if dtype == 'float16':
        wrapper.loss_scale = 'dynamic'
    else:
        wrapper.loss_scale = 1.0  # bfloat16 has the range of float32: gradients need no scale


def training_dtype(cfg: Config) -> str:
    """Return the dtype in which networks compute a training step on a GPU, such as 'float16'."""
    wrapper = cfg.optim_wrapper
    wrapper_class = type_class(wrapper.get('type'), OPTIM_WRAPPERS)
    if isinstance(wrapper_class, type) and issubclass(wrapper_class, AmpOptimWrapper):
        return wrapper.get('dtype') or 'float16'
    return getattr(wrapper_class, 'dtype', 'float32')


def scale_learning_rate(cfg: Config) -> None:
    """Let MMEngine scale the learning rate by the ratio of the actual batch size to the config's.

    Raises:
        UsageError: the config does not say for which batch size its learning rate is.
    """
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise UsageError(
            f'{cfg.filename}: --auto-scale-lr needs auto_scale_lr.base_batch_size in the config'
        )
    cfg.auto_scale_lr.enable = True


def request_compilation(cfg: Config, backend: str) -> None:
    """Add the hook to the config that compiles the backbone with a backend of torch.compile."""
    _add_hook(cfg, dict(type='mmpola.CompileBackboneHook', backend=backend))


def _add_hook(cfg: Config, hook: dict[str, Any]) -> None:
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), hook]


def draw_predictions(cfg: Config, folder: str) -> None:
    """Add the hook to the config that draws each test image into `folder`, see `ShowHook`.

    Raises:
        UsageError: the config has no hook or no visualizer to draw with, or there are several
            processes: OpenMMLab's visualizers draw in the first one only.
    """
    processes = place(cfg.launcher).processes
    if processes > 1:
        raise UsageError(
            "--show-dir: expected one process, as OpenMMLab's visualizers draw in the first only, "
            f'got {processes}; draw with tools/test.py'
        )
    hook = (cfg.get('default_hooks') or {}).get('visualization')
    if hook is None:
        raise UsageError('--show-dir: the config has no default_hooks.visualization')
    if not cfg.get('visualizer'):
        raise UsageError('--show-dir: the config has no visualizer')
    drawing = dict(hook)
    kind = drawing['type']
    if not isinstance(kind, str):  # a class: the run's config is written as text
        drawing['type'] = f'{kind.__module__}.{kind.__qualname__}'
    _add_hook(cfg, dict(type='mmpola.ShowHook', folder=folder, drawing=drawing))
