"""The configs of configs/published.csv, and what their models cost: the rows of the tables.

tools/dev/model_table.py writes the tables. What was counted is kept in counts.json.
"""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmpola.messages import UsageError, listed

ROOT = Path(__file__).resolve().parents[2]

SEQUENCES = ('LRA ListOps', 'LRA Text', 'LRA Retrieval', 'LRA Pathfinder', 'LRA Image')

IMAGE_SIZES: dict[str, Any] = {
    'COCO': (800, 1280),
    'ADE20K': (512, 512),
    'ImageNet-1k': None,
    'BCCD': None,
    'your own classes': None,
    'unlabelled photographs': None,
    'everyday photographs': None,
    'generated shapes': None,
    'generated ListOps': None,
    **dict.fromkeys(SEQUENCES),
}
"""Data set -> (height, width) at which multiply-accumulates are counted.

None stands for the backbone's training size, or the length of its longest sequence. The tables
follow this order.
"""

CONFIGS = ROOT / 'configs'
ROWS = CONFIGS / 'published.csv'

COUNTS = Path(__file__).with_name('counts.json')
"""Config -> what has been counted, as `Counts`."""


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
    """A config in the tables: a row of configs/published.csv, where no entry is ''.

    Attributes:
        config: name of its file.
        metric, paper, ours: for two tasks 'A / B'.
        paper: what the source prints; else 'not printed', or 'not in the paper'.
        source: of that figure.
        log: where our result can be looked up.
    """

    config: str
    model: str
    backbone: str
    data: str
    schedule: str
    metric: str
    paper: str
    source: str
    ours: str
    log: str

    @property
    def printed(self) -> str:
        """The paper's results, '-' if none are printed."""
        if self.paper[0].isdigit():
            return self.paper
        return '-'

    @property
    def reached(self) -> str:
        """Our results with their source, '-' if the config has not been run."""
        if self.ours:
            return f'{self.ours} ({self.log})'
        return '-'


def read_models() -> list[Model]:
    """Read the rows of the configs, in the order of their names.

    Raises:
        UsageError: a config has no row, a row no config, or its data set is unknown.
    """
    with ROWS.open(newline='') as file:
        models = [Model(**row) for row in csv.DictReader(file)]
    names = [model.config for model in models]
    configs = sorted(path.stem for path in CONFIGS.glob('*.py'))
    if names != configs:
        wrong = sorted(set(names) ^ set(configs)) or 'another order'
        raise UsageError(f'{ROWS}: expected a row for each config, by name, got {wrong}')
    for model in models:
        if model.data not in IMAGE_SIZES:
            rule = f'expected data of {model.config} to be one of {listed(IMAGE_SIZES, None)}'
            raise UsageError(f'{ROWS}: {rule}, got {model.data}')
    return models


def count(model: Model) -> Counts:
    """Build a config's model and count its parameters and multiply-accumulates."""
    # Without MMEngine, --check works if every model has been counted.
    from mmengine.config import Config

    from mmpola.openmmlab.export.flops import count_model

    cfg = Config.fromfile(CONFIGS / f'{model.config}.py')
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
    stored = {}
    for model in models:
        if model.config in counts:
            stored[model.config] = asdict(counts[model.config])
    return f'{json.dumps(stored, indent=1)}\n'
