"""Print what each import of mmpola changes in this process, as JSON: python -m …process_state."""

import importlib
import json
import logging
import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
import warnings

# Everything that mmpola imports comes first: what it changes is not mmpola's.
import cv2  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import mmengine.registry
import mmengine.runner
import timm
import torch
import torch._dynamo
import torchvision  # noqa: F401
from mmengine.config.utils import MODULE2PACKAGE

FIRST = ('mmpola', 'mmpola.registry', 'mmpola.timm', 'mmpola.openmmlab.config.read')
"""Modules that are imported before the others, which import these."""


def state():
    """Return what libraries like to change: texts by name, lists of texts or numbers."""
    return {
        'argv': list(sys.argv),
        'excepthook': [sys.excepthook.__qualname__, threading.excepthook.__qualname__],
        'displayhook': [sys.displayhook.__qualname__],
        'handlers': [repr(handler) for handler in logging.getLogger().handlers],
        'meta_path': [getattr(finder, '__qualname__', repr(finder)) for finder in sys.meta_path],
        'path': list(sys.path),
        'path_hooks': [repr(hook) for hook in sys.path_hooks],
        'scopes': sorted(mmengine.registry.MODELS._children),
        'packages': [f'{module}={name}' for module, name in MODULE2PACKAGE.items()],
        'operators': [x for x in torch._C._dispatch_get_all_op_names() if 'mmpola' in x],
        'safe globals': [str(known) for known in torch.serialization.get_safe_globals()],
        'signals': [repr(signal.getsignal(number)) for number in signal.valid_signals()],
        'start method': [multiprocessing.get_start_method(allow_none=True)],
        'threads': [torch.get_num_threads(), threading.active_count()],
        'timm': timm.list_models('pola*'),
        'torch': [torch.get_default_dtype(), torch.get_rng_state().sum().item()],
        'variables': [f'{name}={value}' for name, value in os.environ.items()],
        'warnings': [str(entry) for entry in warnings.filters],
    }


def changes(module):
    """Import a module, and return what it changes."""
    return changes_by(lambda: importlib.import_module(module))


def changes_by(action):
    """Return what is new in the state after an action, or gone from it."""
    before = state()
    action()
    found = {}
    for name, after in state().items():
        different = [x for x in after if x not in before[name]]
        different += [x for x in before[name] if x not in after]
        if different:
            found[name] = [str(x) for x in different]
    return found


def main():
    """Import the package and every module in it, and do what scripts do first."""
    found = {module: changes(module) for module in FIRST}
    for module in pkgutil.walk_packages(sys.modules['mmpola'].__path__, 'mmpola.'):
        if module.name not in (*FIRST, 'mmpola.__main__'):
            found[module.name] = changes(module.name)
    from mmpola.command import prepare_script  # after `import mmpola` was looked at

    found['scripts'] = changes_by(prepare_script)
    print(json.dumps({module: changed for module, changed in found.items() if changed}))


if __name__ == '__main__':
    main()
