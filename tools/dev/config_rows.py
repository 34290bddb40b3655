"""What the docstrings of the configs say, and what their models cost: the rows of the tables.

tools/dev/model_table.py writes the tables. A config's docstring begins 'MODEL, BACKBONE, DATA,
SCHEDULE.' and has the line 'Expected METRIC: VALUE (SOURCE); ours: RESULT (SOURCE).'; two tasks are
written as 'A / B'. What was counted is kept in counts.json.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmpola.messages import UsageError

ROOT = Path(__file__).resolve().parents[2]

SEQUENCES = ('LRA ListOps', 'LRA Text', 'LRA Retrieval', 'LRA Pathfinder', 'LRA Image')

IMAGE_SIZES: dict[str, Any] = {
    'COCO': (800, 1280),
    'ADE20K': (512, 512),
    'ImageNet-1k': None,
    'BCCD': None,
    'your own classes': None,
    'unlabelled photographs': None,
    'generated shapes': None,
    'generated ListOps': None,
    **dict.fromkeys(SEQUENCES),
}
"""Data set -> (height, width) at which multiply-accumulates are counted.

None stands for the backbone's training size, or the length of its longest sequence. The tables
follow this order.
"""

COUNTS = Path(__file__).with_name('counts.json')
"""Config -> what has been counted, as `Counts`."""

DATA = '|'.join(re.escape(name) for name in IMAGE_SIZES)
TITLE = re.compile(rf'(?P<model>.+), (?P<backbone>[^,]+), (?P<data>{DATA}), (?P<schedule>.+)\.')
EXPECTED = re.compile(
    r'Expected (?P<metric>[^:]+): (?P<paper>[^(;]+?)(?: \((?P<paper_source>[^;]+)\))?; '
    r'ours: (?P<ours>[^(]+?)(?: \((?P<ours_source>.+)\))?\.$',
    re.MULTILINE,
)


@dataclass
class Counts:
    """What a config's model costs, as the tables print it.

    Attributes:
        parameters: in millions.
        macs: multiply-accumulates of one input, in thousand millions.
        size: 'HEIGHT x WIDTH' of an image in pixels, or 'LENGTH tokens'.
    """

    parameters: str
    macs: str
    size: str


@dataclass
class Model:
    """A config in the tables: the words of its docstring.

    Attributes:
        metric, paper, ours: for two tasks 'A / B'; the results may be text such as 'not yet run'.
    """

    name: str
    model: str
    backbone: str
    data: str
    schedule: str
    metric: str
    paper: str
    paper_source: str | None
    ours: str
    ours_source: str | None

    @property
    def printed(self) -> str:
        """The paper's results, '-' if none are printed."""
        if self.paper[0].isdigit():
            return self.paper
        return '-'

    @property
    def reached(self) -> str:
        """Our results with their source, '-' if the config has not been run."""
        if self.ours_source:
            return f'{self.ours} ({self.ours_source})'
        return '-'


def read_docstring(config: Path) -> Model:
    """Read the docstring of a config; nothing is counted yet.

    Raises:
        UsageError: the docstring lacks a part, or names an unknown data set.
    """
    text = ast.get_docstring(ast.parse(config.read_text())) or ''
    title = TITLE.match(text)
    expected = EXPECTED.search(text)
    if title is None or expected is None:
        raise UsageError(
            f"{config}: expected a docstring that begins 'MODEL, BACKBONE, DATA, SCHEDULE.', "
            f'with DATA one of {", ".join(IMAGE_SIZES)}, and has a line '
            f"'Expected METRIC: VALUE (SOURCE); ours: RESULT.'"
        )
    words: dict[str, Any] = title.groupdict() | expected.groupdict()
    return Model(config.stem, **words)


def count(model: Model) -> Counts:
    """Build a config's model and count its parameters and multiply-accumulates."""
    # Without MMEngine, --check works if every model has been counted.
    from mmengine.config import Config

    from mmpola.apps.publish.flops import count_model

    cfg = Config.fromfile(ROOT / 'configs' / f'{model.name}.py')
    backbone = cfg.model.backbone
    size = IMAGE_SIZES[model.data]
    unit = ''
    if 'length' in backbone:
        size = (backbone.length,)
        unit = ' tokens'
    elif size is None:
        size = backbone.get('pretrain_img_size', 224)
        if isinstance(size, int):
            size = (size, size)
    parameters, macs = count_model(cfg, size)
    sides = ' x '.join(str(side) for side in size)
    return Counts(rounded(parameters / 1e6), rounded(macs / 1e9), f'{sides}{unit}')


def read_counts() -> dict[str, Counts]:
    """Read what has been counted, by the config's name."""
    stored = json.loads(COUNTS.read_text())
    return {name: Counts(**counts) for name, counts in stored.items()}


def rounded(value: float) -> str:
    """Return a number with one decimal, or with two if it is below 1."""
    if value >= 1:
        return f'{value:.1f}'
    return f'{value:.2f}'


def stored_counts(models: list[Model], counts: dict[str, Counts]) -> str:
    """Return the text of the file of counts."""
    stored = {model.name: asdict(counts[model.name]) for model in models if model.name in counts}
    return f'{json.dumps(stored, indent=1)}\n'
