"""The result of inspecting a data set: counts, broken rules, and the checks of its files that remain to be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mmpola.messages import BrokenRule, listed

FileCheck = Callable[[], list[BrokenRule]]
"""Reads one file and returns the rules that it breaks."""


@dataclass
class Contents:
    """What a data set holds.

    Attributes:
        images, annotations: counts of what a loader returns, after everything that it drops.
        unannotated: number of these images without any annotation.
        classes: names in the order of their labels; empty if unknown.
        problems: prevent training.
        warnings: what a loader drops; training runs without it.
        notes: unusual, but do not prevent training.
        without_mask: annotations that a loader keeps although they have no segmentation, which masks are made from.
        image_files: checks of all images.
        label_files: checks of all label maps, or masks in run lengths; a sample of them is run before every training.
    """

    images: int = 0
    annotations: int = 0
    unannotated: int = 0
    classes: Sequence[str] = ()
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    without_mask: list[str] = field(default_factory=list)
    image_files: list[FileCheck] = field(default_factory=list)
    label_files: list[FileCheck] = field(default_factory=list)


Rule = tuple[list[str], str, Iterable[object]]
"""(the `problems`, `warnings` or `notes` of a data set, a rule, what breaks it)."""


def apply(table: Iterable[Rule]) -> None:
    """Add a line for every rule that something breaks: the rule, how many break it, and the first of them."""
    for lines, rule, items in table:
        if broken := list(items):
            lines.append(f'{rule} ({len(broken)}): {listed(broken)}')
