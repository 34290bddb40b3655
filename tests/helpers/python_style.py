"""Write a config in MMEngine's Python style: classes as types, bases by `read_base()`."""

from pprint import pformat

from mmengine import registry

from mmpola.openmmlab.config.types import scope, type_class

SEARCHED = (
    'MODELS',
    'DATASETS',
    'DATA_SAMPLERS',
    'HOOKS',
    'LOG_PROCESSORS',
    'LOOPS',
    'METRICS',
    'OPTIMIZERS',
    'OPTIM_WRAPPERS',
    'PARAM_SCHEDULERS',
    'TASK_UTILS',
    'TRANSFORMS',
    'VISBACKENDS',
    'VISUALIZERS',
    'WEIGHT_INITIALIZERS',
)
"""Registries of MMEngine in which the types of a config are."""

NAMES_OF_LAYERS = ('norm_cfg', 'conv_cfg', 'act_cfg', 'roi_layer', 'nms')
"""Keys of dicts whose types stay names, because mmcv and mmdet compare them."""


class _Name:
    """Stands for a class in the text of a config."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def write_in_python_style(cfg, folder, name):
    """Write a config as NAME.py and its model as NAME_model.py; return the path of the first.

    It has no `default_scope`, and its classes need none.
    """
    imports = {}
    texts = {}
    for key, value in cfg.to_dict().items():
        if key != 'default_scope':
            texts[key] = f'{key} = {pformat(_with_classes(value, cfg, imports), sort_dicts=False)}'
    lines = [f'from {module} import {short}' for short, module in sorted(imports.items())]
    model = folder / f'{name}_model.py'
    model.write_text('\n'.join([*lines, texts.pop('model')]))
    base = ['from mmengine.config import read_base', 'with read_base():']
    base.append(f'    from .{name}_model import *')
    path = folder / f'{name}.py'
    path.write_text('\n'.join([*base, *lines, *texts.values()]))
    return path


def _with_classes(node, cfg, imports, key=''):
    """Return a value of a config with classes in place of types, and add what it imports."""
    if isinstance(node, (list, tuple)):
        return type(node)(_with_classes(value, cfg, imports, key) for value in node)
    if not isinstance(node, dict):
        return node
    found = {name: _with_classes(value, cfg, imports, name) for name, value in node.items()}
    found.pop('_scope_', None)
    kind = node.get('type')
    if isinstance(kind, str) and key not in NAMES_OF_LAYERS:
        for name in SEARCHED:
            cls = type_class(kind, getattr(registry, name), scope(cfg))
            if cls is not None:
                assert imports.setdefault(cls.__name__, cls.__module__) == cls.__module__
                found['type'] = _Name(cls.__name__)
                break
        else:
            raise AssertionError(f'{key}: {kind} is in no registry')
    return found
