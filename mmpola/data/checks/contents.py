"""What a look into a data set brings: counts, problems, and the files that are still to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mmpola.messages import listed

Reading = Callable[[], list[tuple[str, str]]]
"""Reads one file and returns (rule that is broken, name of the file and what came) for each broken rule."""


@dataclass
class Contents:
    """One data set; `problems` stop a training, `notes` are worth knowing."""

    images: int = 0
    annotations: int = 0
    without: int = 0
    """Images without any annotation."""
    classes: Sequence[str] = ()
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    image_files: list[Reading] = field(default_factory=list)
    label_files: list[Reading] = field(default_factory=list)
    """Files whose contents fail late and without a name: the start of a training reads a sample of them."""


def grouped(broken: Iterable[tuple[str, str]]) -> list[str]:
    """One line for each broken rule, with its first files."""
    by_rule: dict[str, list[str]] = {}
    for rule, item in broken:
        by_rule.setdefault(rule, []).append(item)
    return [f'{rule} ({len(items)}): {listed(items)}' for rule, items in by_rule.items()]
