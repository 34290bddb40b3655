"""Name the part of a config that a constructor refuses: `keys_in_errors`."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.config import Config
from mmengine.registry import Registry

from mmpola.config_contents import nodes
from mmpola.messages import UsageError
from mmpola.registry import MODULE_OF_NAME

NAMES_ARGUMENT = re.compile(r'(\w+): expected ')
"""How the messages of mmpola's constructors begin."""


@contextmanager
def keys_in_errors(cfg: Config) -> Iterator[None]:
    """Put the config key of a part in front of the error that its constructor raises.

    MMEngine builds every part by `Registry.build`, which is wrapped here: its own errors name no
    key. Errors that are raised elsewhere, such as in a training step, pass unchanged.

    Raises:
        UsageError: a constructor has failed; the message is one line.
    """
    build = Registry.build

    def build_part(registry: Registry, part: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return build(registry, part, *arguments, **options)
        except UsageError:
            raise
        except Exception as error:  # constructors of other packages raise exceptions of any type
            key = _key_of(part, cfg)
            if key is None:
                raise
            raise UsageError(_message(key, part, error)) from error

    Registry.build = build_part
    try:
        yield
    finally:
        Registry.build = build


def _key_of(part: Any, cfg: Config) -> str | None:
    """Return the config key of a dict that MMEngine builds from; None if there is none.

    MMEngine and mmdet copy dicts and add or remove entries, so only the entries that both dicts
    have are compared.
    """
    if not isinstance(part, dict):
        return None
    if 'optim_wrapper_cfg' in part:  # MMEngine wraps this part for the constructor of optimizers
        return 'optim_wrapper'
    for key, node in nodes(cfg._cfg_dict, ''):
        common = node.keys() & part.keys()
        if 'type' in common and all(node[name] == part[name] for name in common):
            return key
    return None


def _message(key: str, part: dict[str, Any], error: Exception) -> str:
    text = ''
    if error.args:
        text = str(error.args[0]).partition('\n')[0]  # str() of a KeyError has quotes
    name = part.get('type')
    if text.startswith(f'{name} is not in the '):
        message = f'{key}.type: {text.partition(". ")[0]}'
        if name in MODULE_OF_NAME:
            message += f'; write mmpola.{name}'
        return message
    argument = NAMES_ARGUMENT.match(text)
    if argument is None:
        if not text:  # an assertion, for example
            text = str(traceback.extract_tb(error.__traceback__)[-1].line)
        return f'{key}: {type(error).__name__}: {text}'
    if argument[1] in part:
        return f'{key}.{text}'
    return f'{key}: {text}'
