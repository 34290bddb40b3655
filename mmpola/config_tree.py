"""The dicts inside a config: walking through them, and the arguments that their classes accept."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from mmpola.messages import did_you_mean, nearest

SIMILAR = 0.85
"""Where another name might be meant to be new, this similarity to a known one makes it a misspelling."""


def nodes(node: Any, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (dotted key, dict) for every dict inside a config, outermost first; `key` is that of `node` itself."""
    children: Iterable[tuple[Any, Any]] = enumerate(node) if isinstance(node, (list, tuple)) else ()
    if isinstance(node, dict):
        yield key, node
        children = node.items()
    for name, child in children:
        yield from nodes(child, f'{key}.{name}')


def predicted_classes(model: Any) -> list[tuple[str, int]]:
    """List (config key, num_classes) of a classifier and of every head except an RPN, which only finds objects."""
    return [
        (f'{key}.num_classes', node['num_classes'])
        for key, node in nodes(model, 'model')
        if 'num_classes' in node and (key == 'model' or 'head' in key) and 'rpn_head' not in key.split('.')
    ]


def class_of(node: dict[str, Any], registry: Any) -> Any:
    """Return the class or function that a config's dict names, in the default scope; None if there is none."""
    if not isinstance(node['type'], str):
        return node['type']
    with registry.switch_scope_and_registry(node.get('_scope_')) as scoped:
        return scoped.get(node['type'])


def arguments_of(cls: Any) -> tuple[list[str], bool]:
    """Return the names of a class's or function's arguments, and whether it refuses others.

    A constructor with `**kwargs` is taken to pass them to that of its base class.
    """
    bases = inspect.getmro(cls) if inspect.isclass(cls) else ()
    constructors = [vars(base)['__init__'] for base in bases if '__init__' in vars(base)] or [cls]
    names: list[str] = []
    for number, constructor in enumerate(constructors):
        try:
            parameters = inspect.signature(constructor).parameters.values()
        except ValueError:  # written in C
            break
        names += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return names, number == 0
    return names, False


def unknown_argument(node: dict[str, Any], cls: Any, others: Iterable[str] = ()) -> str | None:
    """Return the first entry of a config's dict that its class does not accept, None if there is none.

    Args:
        node: the dict.
        cls: its class or function. If that takes any keyword, only names that resemble one of its own are refused.
        others: entries that MMEngine removes before it builds the object.
    """
    known, closed = arguments_of(cls)
    for name in node:
        own = name in known or name in others or name == 'type' or name.startswith('_')
        if not own and (closed or nearest(name, known, SIMILAR)):
            return name
    return None


def argument_message(key: str, cls: Any, name: str) -> str:
    """Say that a class does not accept an argument, with its most similar one."""
    meant = did_you_mean(nearest(name, arguments_of(cls)[0]))
    return f'{key}: expected arguments of {getattr(cls, "__name__", cls)}, got {name}{meant}'


def type_message(key: str, name: str, registry: Any) -> str:
    """Say that a name is in no scope of a registry of MMEngine, with the most similar one that is."""
    known: dict[str, str] = {}
    for child in registry.children.values():
        child.import_from_location()
        known |= {plain: f'{child.scope}.{plain}' for plain in child.module_dict}
    with registry.switch_scope_and_registry(None) as scoped:  # names of these two need no scope
        known |= {plain: plain for plain in (*registry.module_dict, *scoped.module_dict)}
    close = nearest(name.rpartition('.')[2], known, 0.75)
    return f'{key}.type: expected a registered {registry.name}, got {name}{did_you_mean(close and known[close])}'
