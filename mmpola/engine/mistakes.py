"""Describe in one line why a part of a config cannot be built, with the name that is probably meant."""

from __future__ import annotations

import inspect
import re
import traceback
from typing import Any

from mmengine.registry import Registry

import mmpola.registry  # noqa: F401  adds the scope to those of MMEngine
from mmpola.messages import listed, suggestion

NOT_REGISTERED = re.compile(r'(\S+) is not in the (\S+) registry')
UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of the parameters *args and **kwargs."""
OWN_MESSAGE = re.compile(r'\w+: expected ')
"""How the messages of mmpola's constructors begin: with the argument's name."""


def mistake(key: str, node: dict[str, Any], registry: Registry, error: Exception) -> str:
    """Describe in one line why the part of a config with this key and dict cannot be built."""
    text = _first_line_of(error)
    if wrong_name := wrong_name_in(key, node, registry, error):
        return wrong_name
    if OWN_MESSAGE.match(text):
        return f'{key}.{text}'
    where = traceback.extract_tb(error.__traceback__)[-1].line
    return f'{key}: cannot be built: {type(error).__name__}: {text or where}'


def wrong_name_in(
    key: str, node: dict[str, Any], registry: Registry, error: Exception
) -> str | None:
    """Describe in one line a type or an argument that does not exist; None if the error is another one.

    Args:
        key: of a part of a config.
        node: the part.
        registry: where its class is looked up.
        error: what its construction raised.
    """
    text = _first_line_of(error)
    if match := NOT_REGISTERED.match(text):
        meant = _similar_type(match[1], registry)
        return f'{key}.type: expected a name in the {match[2]} registry, got {match[1]}{meant}'
    if (match := UNEXPECTED.search(text)) and match[1] in node:
        known = defaults_of(class_of(node, registry))
        meant = suggestion(match[1], known)
        name = getattr(node['type'], '__name__', node['type'])
        arguments = '' if meant else f' ({listed(known, None)})'
        return f'{key}: expected arguments of {name}{arguments}, got {match[1]}{meant}'
    return None


def _first_line_of(error: Exception) -> str:
    return str(error.args[0] if error.args else '').partition('\n')[
        0
    ]  # str() of a KeyError has quotes


def _similar_type(name: str, registry: Registry) -> str:
    """Return the end of a message that suggests a registered name, with its scope if it needs one."""
    if 'mmpola' in registry.children:
        registry.children['mmpola'].import_from_location()
    with registry.switch_scope_and_registry(None) as scoped:
        known = [*scoped.module_dict, *registry.module_dict]
    known += [
        f'{scope}.{each}'
        for scope, child in registry.children.items()
        for each in child.module_dict
    ]
    in_other_scopes = [each for each in known if each.endswith(f'.{name}')]
    if in_other_scopes:
        return suggestion(name, in_other_scopes, similarity=0)
    return suggestion(name, known)


def defaults_of(cls: Any) -> dict[str, Any]:
    """Return the arguments of a class, and of the bases that it may pass **kwargs on to, with their defaults."""
    bases: tuple[Any, ...] = inspect.getmro(cls) if inspect.isclass(cls) else (cls,)
    defaults: dict[str, Any] = {}
    for base in bases:
        if base.__module__ == 'builtins':  # some have no signature
            continue
        parameters = inspect.signature(base).parameters.values()
        for parameter in parameters:
            if parameter.kind not in VARIADIC:
                defaults.setdefault(parameter.name, parameter.default)
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return defaults


def class_of(node: dict[str, Any], registry: Registry) -> Any:
    """Return the class that a part of a config names.

    Raises:
        KeyError: it is not registered.
    """
    cls = node['type']
    with registry.switch_scope_and_registry(node.get('_scope_')) as scoped:
        cls = scoped.get(cls) if isinstance(cls, str) else cls
    if cls is None:
        raise KeyError(f'{node["type"]} is not in the {registry.name} registry')
    return cls
