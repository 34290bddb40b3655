"""The table of checks: each is a name, a level, and a function over what was read.

`data.py`, `run.py`, `built.py` and `trial.py` fill it, and are read downwards. A check yields a
line for each thing that it finds, without 'error:' or 'warning:' in front and without its name
behind. The first line of its docstring is its row in docs/tools.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from mmengine.config import Config
from torch import nn

from mmpola.messages import UsageError, first_line, listed
from mmpola.openmmlab.checks.read import Data
from mmpola.openmmlab.config.contents import skipped_checks

ERROR = 'error'
WARNING = 'warning'
IN_TRAINING = 'error in training'
"""Levels. The last is an error of data that training learns from, and a warning of other data."""

FIRST, DATA, SAMPLE, TOGETHER, BUILT = range(5)
"""When a check is asked, and of what: a `Run`, a `Data` or a `Built`.

FIRST: whether everything could be read (`Run`). DATA: what a data set knows. SAMPLE: what its
pipeline has loaded. TOGETHER: all data sets, the model and the evaluators, if no file is missing
(`Run`). BUILT: the runner, before the first step or before a test (`Built`).
"""


class Run(NamedTuple):
    """What a script is about to use: the config, some splits of it, and the model.

    Attributes:
        cfg: the config.
        splits: some of 'train', 'val' and 'test'.
        whole: whether every sample is loaded.
        sets: the data sets of these splits.
        measured: other data sets; only the size at which the network reads their images is known.
        model: the config's model as it was built, on any device; None: it is not asked.
    """

    cfg: Config
    splits: Sequence[str]
    whole: bool
    sets: list[Data]
    model: nn.Module | None = None
    measured: Sequence[Data] = ()


@dataclass
class Built:
    """A run that is about to train or test: loops and optimizer are built, weights are loaded.

    Attributes:
        runner: MMEngine's.
        split: whose images are tried: 'val' before training, 'test' before a test.
        metrics: what the evaluator has returned for them, by name.
    """

    runner: Any
    split: str
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def loop(self) -> Any:
        """MMEngine's loop of the split; None if the config has none."""
        return getattr(self.runner, f'_{self.split}_loop')


Ask = Callable[[Any], Iterable[str]]


class Check(NamedTuple):
    """A check: its name, its level, when it is asked, what it finds, and how it finds it."""

    name: str
    level: str
    asked: int
    about: str
    ask: Ask

    def findings(self, subject: Run | Data | Built) -> list[Finding]:
        """Ask it.

        A check that fails itself, for content that nobody has thought of, is a warning.
        """
        level = self.level
        if level == IN_TRAINING:
            level = ERROR if isinstance(subject, Data) and subject.is_trained else WARNING
        try:
            return [Finding(self.name, level, text) for text in self.ask(subject)]
        except Exception as error:
            text = f'this check fails itself, please report it: {first_line(error)}'
            return [Finding(self.name, WARNING, text)]


class Finding(NamedTuple):
    """What a check has found."""

    name: str
    level: str
    text: str

    @property
    def line(self) -> str:
        """The text and the name, without the level."""
        return f'{self.text} [{self.name}]'

    def __str__(self) -> str:
        before = 'warning: ' if self.level == WARNING else ''
        return f'{before}{self.line}'


CHECKS: dict[str, Check] = {}
"""All checks by name."""


def check(name: str, level: str, asked: int) -> Callable[[Ask], Ask]:
    """Add a function to the table."""

    def add(ask: Ask) -> Ask:
        about = (ask.__doc__ or '').strip().splitlines()[0].rstrip('.')
        CHECKS[name] = Check(name, level, asked, about, ask)
        return ask

    return add


def run_checks(asked: int, subject: Run | Data | Built, skip: Sequence[str]) -> list[Finding]:
    """Run every check of this phase that is not skipped; return what they find."""
    found = []
    for one in CHECKS.values():
        if one.asked == asked and one.name not in skip:
            found += one.findings(subject)
    return found


def names_to_skip(cfg: Config) -> list[str]:
    """Return `data_checks.skip` of a config.

    Raises:
        UsageError: a name is not in the table.
    """
    names = skipped_checks(cfg)
    for name in names:
        if name not in CHECKS:
            (nearest,) = get_close_matches(str(name), CHECKS, n=1, cutoff=0)
            raise UsageError(
                'data_checks.skip, --skip-checks: expected names of checks, which are in '
                f'docs/tools.md, got {listed([name])}; did you mean {nearest}?'
            )
    return names


def lines_for(rule: str, items: Sequence[object]) -> Iterator[str]:
    """Yield a line if something breaks a rule: the rule, how many break it, and the first."""
    if items:
        yield f'{rule} ({len(items)}): {listed(items)}'
