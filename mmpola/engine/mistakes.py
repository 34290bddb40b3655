"""Describe in one line why a part of a config cannot be built, and suggest the right name."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import OPTIM_WRAPPERS, Registry, build_from_cfg, build_scheduler_from_cfg

import mmpola.registry  # noqa: F401  adds the scope to the scopes of MMEngine
from mmpola.config_tree import nodes
from mmpola.messages import UsageError, listed, suggestion

NOT_REGISTERED = re.compile(r'(\S+) is not in the (.+?) registry')
UNEXPECTED_ARGUMENT = re.compile(r"got an unexpected keyword argument '(\w+)'")
OWN_MESSAGE = re.compile(r'(\w+): expected ')
"""How the messages of mmpola's constructors begin: with the name of an argument."""

DEVICE_ERRORS = (torch.OutOfMemoryError, torch.distributed.DistError)
"""Errors whose traceback helps more than a key of the config."""


class Part(NamedTuple):
    """A dict of a config that stands for an object: its dotted key, the dict, and its registry."""

    key: str
    node: dict[str, Any]
    registry: Registry


@contextmanager
def mistakes_in_one_line(cfg: dict[str, Any]) -> Iterator[None]:
    """Turn an error of a constructor that MMEngine calls for `cfg` into one line with its key.

    Raises:
        UsageError: a constructor has failed. Other errors, such as one of a training step, pass
            unchanged.
    """
    try:
        yield
    except (UsageError, *DEVICE_ERRORS):
        raise
    except Exception as error:  # constructors of other packages raise exceptions of any type
        built = _dicts_being_built(error)
        if not built:
            raise
        part = _innermost_part(cfg, built)
        if part is None:
            raise UsageError(_reason(error)) from error
        raise UsageError(mistake(part.key, part.node, part.registry, error)) from error


def _dicts_being_built(error: Exception) -> list[tuple[dict[str, Any], Registry]]:
    """List the dicts that MMEngine was building objects from when it failed, outermost first.

    MMEngine's errors name no key, but the frames of the functions that build hold these dicts.
    """
    built = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code in (build_from_cfg.__code__, build_scheduler_from_cfg.__code__):
            built.append((frame.f_locals['cfg'], frame.f_locals['registry']))
        elif frame.f_code is build_optim_wrapper.__code__:
            built.append((frame.f_locals['cfg'], OPTIM_WRAPPERS))
    return built


def _innermost_part(
    cfg: dict[str, Any], built: list[tuple[dict[str, Any], Registry]]
) -> Part | None:
    """Find the innermost of the dicts that is part of a config.

    MMEngine and mmdet add and remove entries, so only entries that both dicts have are compared.
    """
    for dictionary, registry in reversed(built):
        for key, node in nodes(cfg, ''):
            common = node.keys() & dictionary.keys()
            same_type = node.get('type') == dictionary.get('type')
            if common and same_type and all(node[name] == dictionary[name] for name in common):
                return Part(key, node, registry.root)
    return None


def mistake(key: str, node: dict[str, Any], registry: Registry, error: Exception) -> str:
    """Describe in one line why the part of a config with this key and dict cannot be built."""
    wrong_name = wrong_name_in(key, node, registry, error)
    if wrong_name is not None:
        return wrong_name
    reason = _reason(error)
    own = OWN_MESSAGE.match(reason)
    if own is None:
        return f'{key}: cannot be built: {reason}'
    argument = own[1]
    inner = _dict_with(argument, key, node)
    if inner is None:
        return f'{key}: {reason}'
    inner_key, _ = inner
    return f'{inner_key}.{reason}'


def _dict_with(name: str, key: str, node: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Find the key and dict of a part, or else of a dict inside it, that has an entry of this name.

    Some classes, such as `ImageClassifier`, build what is inside them without a registry.
    """
    for inner_key, inner in nodes(node, key):
        if name in inner:
            return inner_key, inner
    return None


def _reason(error: Exception) -> str:
    """Return the message of one of our constructors, or type and first line of another error."""
    text = _first_line_of(error)
    if OWN_MESSAGE.match(text):
        return text
    if not text:  # an assertion, for example
        text = str(traceback.extract_tb(error.__traceback__)[-1].line)
    return f'{type(error).__name__}: {text}'


def wrong_name_in(
    key: str, node: dict[str, Any], registry: Registry, error: Exception
) -> str | None:
    """Describe in one line a type or an argument that does not exist; None for other errors.

    Args:
        key: config key of a part.
        node: the part.
        registry: where its class is looked up.
        error: what its constructor raised.
    """
    text = _first_line_of(error)
    match = NOT_REGISTERED.match(text)
    if match and match[1] == node.get('type'):
        name, registry_name = match.groups()
        meant = _similar_type(name, registry)
        return f'{key}.type: expected a name in the {registry_name} registry, got {name}{meant}'
    match = UNEXPECTED_ARGUMENT.search(text)
    if match is None:
        return None
    argument = match[1]
    inner = _dict_with(argument, key, node)
    if inner is None:
        return None
    inner_key, inner_node = inner
    try:
        cls = class_of(inner_node, registry)
    except KeyError:  # the argument was passed on by another class
        return None
    return unknown_argument(inner_key, inner_node, cls, argument)


def unknown_argument(key: str, node: dict[str, Any], cls: Any, name: str) -> str:
    """Describe an argument that a class does not take, with the most similar one or else all."""
    known, _ = arguments_of(cls)
    class_name = getattr(node['type'], '__name__', node['type'])
    meant = suggestion(name, known)
    if meant:
        return f'{key}: expected arguments of {class_name}, got {name}{meant}'
    return f'{key}: expected arguments of {class_name} ({listed(known, None)}), got {name}'


def _first_line_of(error: Exception) -> str:
    if not error.args:
        return ''
    message = str(error.args[0])  # str() of a KeyError has quotes
    return message.partition('\n')[0]


def _similar_type(name: str, registry: Registry) -> str:
    """Return the end of a message that suggests a registered name, with its scope if needed."""
    if 'mmpola' in registry.children:
        registry.children['mmpola'].import_from_location()
    with registry.switch_scope_and_registry(None) as scoped:
        known = [*scoped.module_dict, *registry.module_dict]
    for scope, child in registry.children.items():
        known += [f'{scope}.{each}' for each in child.module_dict]
    in_other_scopes = [each for each in known if each.endswith(f'.{name}')]
    if in_other_scopes:
        return suggestion(name, in_other_scopes, similarity=0)
    return suggestion(name, known)


def class_of(node: dict[str, Any], registry: Registry) -> Any:
    """Return the class that a part of a config names.

    Raises:
        KeyError: it is not registered.
    """
    cls = node['type']
    if isinstance(cls, str):
        with registry.switch_scope_and_registry(node.get('_scope_')) as scoped:
            cls = scoped.get(cls)
    if cls is None:
        raise KeyError(f'{node["type"]} is not in the {registry.name} registry')
    return cls


def arguments_of(cls: Any) -> tuple[list[str], bool]:
    """Return the names of a class's arguments, and whether it may take others.

    A class with **kwargs also takes the arguments of its next base class that has a constructor. If
    there is none, it may take any.
    """
    constructors = [cls]
    if inspect.isclass(cls):
        bases: list[Any] = [base for base in inspect.getmro(cls) if base is not object]
        constructors = [base.__init__ for base in bases if '__init__' in vars(base)]
    names: list[str] = []
    for constructor in constructors:
        takes_others = False
        for name, parameter in inspect.signature(constructor).parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                takes_others = True
            elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL and name != 'self':
                names.append(name)
        if not takes_others:
            return names, False
    return names, bool(constructors)
