"""Backbones with polarity-aware linear attention, a module per family.

A family's module is imported when its class is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mmpola
from mmpola.zoo import NAMED

if TYPE_CHECKING:
    from mmpola.backbones.base import Backbone


def __dir__() -> list[str]:
    """Return the names of the backbones."""
    return sorted({class_name for class_name, _ in NAMED.values()})


def __getattr__(name: str) -> Any:
    if name not in __dir__():
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(mmpola, name)


def named_backbone(name: str) -> tuple[type[Backbone], dict[str, Any]]:
    """Return the class of a model of `mmpola.zoo.NAMED` and its arguments."""
    class_name, arguments = NAMED[name]
    return getattr(mmpola, class_name), arguments
