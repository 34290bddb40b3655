"""The command line's `--cfg-options KEY=VALUE …`: reading values, and writing them into a config under checked keys."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Sequence
from typing import Any

from mmengine.config import Config, ConfigDict, DictAction
from mmengine.runner import Runner

from mmpola.config_tree import SIMILAR
from mmpola.messages import UsageError, did_you_mean, nearest

READ = {
    *inspect.signature(Runner).parameters,
    *('activation_checkpointing', 'compile', 'efficient_conv_bn_eval', 'find_unused_parameters', 'model_wrapper_cfg'),
    *('sync_bn', 'custom_imports', 'tta_model', 'tta_pipeline'),
}
"""Keys of a config that MMEngine's Runner, or a script of OpenMMLab, reads; others are variables inside the file."""

DICTS = ('dict(', '{')
"""How a value begins that is a dict; MMEngine's own parser knows numbers, names, lists and tuples."""


class OptionsAction(DictAction):
    """MMEngine's `DictAction`, which also reads dicts and reports mistakes as `UsageError`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Add the values of `KEY=VALUE …` to those of earlier occurrences of the option."""
        options = dict(getattr(namespace, self.dest, None) or {})
        for entry in values or ():
            key, equals, text = entry.partition('=')
            if not key or not equals:
                raise UsageError(f'--cfg-options: expected KEY=VALUE, got {entry}')
            options[key] = _value(key, text)
        setattr(namespace, self.dest, options)


def _value(key: str, text: str) -> Any:
    text = text.strip()
    try:
        if text.startswith(DICTS):
            return ast.literal_eval(_DictCalls().visit(ast.parse(text, mode='eval')))
        return DictAction._parse_iterable(text)
    except (AssertionError, RecursionError, SyntaxError, ValueError):
        example = "a number, name, list, tuple or dict, such as dict(depths=(1, 1, 1, 1), name='x')"
        raise UsageError(f'--cfg-options: {key}: expected {example}, got {text}') from None


class _DictCalls(ast.NodeTransformer):
    """Turn the calls `dict(a=1)` of a syntax tree into the literals `{'a': 1}`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a call of `dict` with keywords only; others stay, and are no literals."""
        self.generic_visit(node)
        names = [keyword.arg for keyword in node.keywords]
        if not isinstance(node.func, ast.Name) or node.func.id != 'dict' or node.args or None in names:
            return node
        return ast.Dict([ast.Constant(name) for name in names], [keyword.value for keyword in node.keywords])


def is_variable(cfg: Config, name: str) -> bool:
    """Return whether a top-level key of a config is not read by MMEngine, but used in the text of its files."""
    return name not in READ and re.search(rf'\b{re.escape(name)}\b(?!\s*=[^=])', cfg.text) is not None


def apply_options(cfg: Config, options: dict[str, Any]) -> None:
    """Write `options`, values by dotted key, into a config. A dict is merged into a dict and replaces any other value.

    Raises:
        UsageError: a key leads through a value that is neither a dict nor a list, to an entry that a list does not
            have, to a new entry that nothing reads or whose name resembles that of an existing one, or to a variable,
            which the file has been computed from already.
    """
    for key, value in options.items():
        *parents, last = key.split('.')
        if is_variable(cfg, first := key.split('.')[0]):
            raise UsageError(
                f'--cfg-options: {key}: expected a key that is read later, got {first}, a variable of the config file; '
                'set the keys that are computed from it'
            )
        node: Any = cfg._cfg_dict
        for depth, name in enumerate(parents):
            entry = _entry(node, name, key, depth)
            if isinstance(node, dict) and entry not in node:
                node[entry] = ConfigDict()
            node = node[entry]
        entry = _entry(node, last, key, len(parents))
        if isinstance(value, dict) and isinstance(node, dict) and isinstance(node.get(entry), ConfigDict):
            node[entry].merge(value)
        else:
            node[entry] = ConfigDict(value) if isinstance(value, dict) else value


def _entry(node: Any, name: str, key: str, depth: int) -> str | int:
    """Return the index or key that `name`, at this depth of the option `key`, has in a list or dict of the config."""
    above = '.'.join(key.split('.')[:depth])
    if isinstance(node, list):
        if not name.isdigit() or int(name) >= len(node):
            raise UsageError(f'--cfg-options: {key}: expected an index below {len(node)} after {above}, got {name}')
        return int(name)
    if not isinstance(node, dict):
        raise UsageError(f'--cfg-options: {key}: expected a dict or list at {above}, got {node!r}')
    if name in node or 'type' in node:  # arguments of a class are checked with those in the config's file
        return name
    if depth == 0 and name not in READ:
        meant = did_you_mean(nearest(name, {*node, *READ}))
        raise UsageError(f'--cfg-options: {key}: expected a key of the config, got {name}{meant}')
    if depth and (similar := nearest(name, node, SIMILAR)):
        raise UsageError(f'--cfg-options: {key}: expected a key of {above}, got {name}{did_you_mean(similar)}')
    return name
