"""Backbones with polarity-aware linear attention, a module per family.

A family's module is imported when its class is first used.
"""

from __future__ import annotations

from typing import Any

import mmpola


def __getattr__(name: str) -> Any:
    if not mmpola.PUBLIC_NAMES.get(name, '').startswith(f'{__name__}.'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(mmpola, name)
