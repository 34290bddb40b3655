"""Updates the tables of models in docs/ from the docstrings of the configs.

docs/choose.md also gets the table of backbones and the measurements of `python -m benchmarks.run
zoo`.

    python tools/dev/model_table.py            reads all docstrings, counts new models, writes
    python tools/dev/model_table.py --count    counts every model again, after a change of a model
    python tools/dev/model_table.py --check    writes nothing; exit status 2 if a file is outdated

A config's docstring begins 'MODEL, BACKBONE, DATA, SCHEDULE.' and has the line
'Expected METRIC: VALUE (SOURCE); ours: RESULT (SOURCE).'; two tasks are written as 'A / B'.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse
import ast
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mmpola.checkpoint.hub import PUBLISHED_MODELS, short_name
from mmpola.messages import UsageError, listed, run_main

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / 'benchmarks' / 'results' / 'cpu-2-threads' / 'zoo.json'
"""Result of `python -m benchmarks.run zoo`."""
BEGIN = '<!-- {}: written by tools/dev/model_table.py -->'
"""The line before a table, with its name."""
END = '<!-- end of {} -->'
"""The line after it."""

SEQUENCES = ('LRA ListOps', 'LRA Text', 'LRA Retrieval', 'LRA Pathfinder', 'LRA Image')

IMAGE_SIZES: dict[str, Any] = {
    'COCO': (800, 1280),
    'ADE20K': (512, 512),
    'ImageNet-1k': None,
    'BCCD': None,
    'your own classes': None,
    'generated shapes': None,
    'generated ListOps': None,
    **dict.fromkeys(SEQUENCES),
}
"""Data set -> (height, width) at which multiply-accumulates are counted.

None stands for the backbone's training size, or the length of its longest sequence. The tables
follow this order.
"""

COUNTED = re.compile(
    r'^\| \[(?P<name>\w+)\]\([^)]*\)<br>[^|]+ \| [^|]+ '
    r'\| (?P<parameters>[^|]+) \| (?P<macs>[^|]+) \| (?P<size>[^|]+) \|',
    re.MULTILINE,
)
"""A row of docs/configs.md, which keeps what has been counted."""

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


def read_counts(page: str) -> dict[str, Counts]:
    """Read what has been counted from the tables of docs/configs.md, by the config's name."""
    counts = {}
    for row in COUNTED.finditer(page):
        counts[row['name']] = Counts(row['parameters'], row['macs'], row['size'])
    return counts


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    rule = ['---'] * len(heading)
    lines = []
    for cells in (heading, rule, *rows):
        lines.append(f'| {" | ".join(str(cell) for cell in cells)} |')
    return '\n'.join(lines)


def config_tables(models: list[Model], counts: dict[str, Counts]) -> str:
    """Return the tables of docs/configs.md in Markdown, one per data set."""
    heading = ('config', 'metric', 'parameters (M)', 'MACs (G)', 'input', 'paper', 'ours')
    sections = []
    for data in IMAGE_SIZES:
        rows = []
        for model in models:
            if model.data != data or data in SEQUENCES:
                continue
            link = f'[{model.name}](../configs/{model.name}.py)'
            counted = counts[model.name]
            row = [
                f'{link}<br>{model.model}, {model.backbone}, {model.schedule}',
                model.metric,
                counted.parameters,
                counted.macs,
                counted.size,
                model.printed,
                model.reached,
            ]
            rows.append(row)
        if rows:
            title = f'{data[0].upper()}{data[1:]}'
            sections.append(f'## {title}\n\n{markdown_table(heading, rows)}')
    return '\n\n'.join(sections)


def sequence_table(models: list[Model]) -> str:
    """Return the table of docs/lra.md in Markdown: kinds of attention by tasks.

    A cell has the paper's accuracy and ours.
    """
    heading = ['attention']
    rows: dict[str, list[str]] = {}
    for data in SEQUENCES:
        heading.append(data.removeprefix('LRA ').lower())
        for model in models:
            if model.data == data:
                variant = model.name.split('_', 2)[2]
                cells = rows.setdefault(variant, [f'`{variant}`: {model.backbone}'])
                cell = f'[{model.printed}](../configs/{model.name}.py)'
                if model.ours_source:
                    cell += f', ours: {model.reached}'
                cells.append(cell)
    return markdown_table(heading, rows.values())


def choice_table(models: list[Model]) -> str:
    """Return the table of docs/choose.md in Markdown: measured costs and the papers' results."""
    printed = {model.name: model.printed for model in models}
    heading = (
        'model',
        'parameters (M)',
        'GMACs',
        'top\u20111',  # a hyphen at which the heading does not break
        'COCO AP, box / mask',
        'ADE20K mIoU',
        'weights',
        '224 x 224, ms (MB)',
        '800 x 1333, ms (MB)',
    )
    rows = []
    for measured in json.loads(MEASURED.read_text())['rows']:
        name = measured['case']
        short = short_name(name)
        upernet = f'upernet_{short}_160k'
        semantic_fpn = f'semantic_fpn_{short}_40k'
        weights = 'no'
        if name in PUBLISHED_MODELS:
            weights = 'yes'
        elif name.startswith('polaformer_pp_'):
            weights = 'by hand'  # as docs/weights.md explains
        row = [
            f'`{name}`',
            rounded(measured['parameters (M)']),
            rounded(measured['GMACs, 224x224']),
            printed.get(f'imagenet_{short}', '-'),
            printed.get(f'mask_rcnn_{short}_1x', '-'),
            printed.get(upernet) or printed.get(semantic_fpn, '-'),
            weights,
        ]
        for size in ('224x224', '800x1333'):
            milliseconds = measured[f'ms, {size}']
            megabytes = measured[f'MB, {size}']
            row.append(f'{milliseconds:,.0f} ({megabytes:,.0f})')
        rows.append(row)
    return markdown_table(heading, rows)


def backbone_table() -> str:
    """Return the table of backbones in Markdown: blocks, channels and strides of their stages."""
    import torch

    from mmpola.backbones import named_backbone
    from mmpola.zoo import ARCHITECTURES

    rows = []
    for name in ARCHITECTURES:
        cls, arguments = named_backbone(name)
        arch = arguments['arch']
        with torch.device('meta'):
            model = cls(**arguments)
        settings = import_module(cls.__module__).ARCHS[arch]
        if 'depths' in settings:
            blocks = list(settings['depths'])
            channels = list(model.embed_dims)
            strides = list(model.strides)
        else:  # one stage; the model counts every block as a stage
            blocks = [settings['depth']]
            channels = [model.embed_dims[0]]
            strides = [model.strides[0]]
        cells = (name, f'mmpola.{cls.__name__}', arch, blocks, channels, strides)
        rows.append([f'`{cell}`' for cell in cells])
    return markdown_table(('model', '`type`', '`arch`', 'blocks', 'channels', 'strides'), rows)


def rounded(value: float) -> str:
    """Return a number with one decimal, or with two if it is below 1."""
    if value >= 1:
        return f'{value:.1f}'
    return f'{value:.2f}'


def with_table(text: str, name: str, table: str) -> str:
    """Return a page's text with a table between its two markers."""
    first = BEGIN.format(name)
    last = END.format(name)
    before, _, rest = text.partition(first)
    _, _, after = rest.partition(last)
    if not after:
        raise UsageError(f'docs: expected the lines {first} and {last}')
    return f'{before}{first}\n\n{table}\n\n{last}{after}'


def main() -> None:
    parser = argparse.ArgumentParser(description='Update the tables of models in the docs')
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        '--check', action='store_true', help='change nothing; fail if a file is out of date'
    )
    what.add_argument(
        '--count', action='store_true', help='count every model again, not only new ones'
    )
    args = parser.parse_args()
    models = [read_docstring(config) for config in sorted((ROOT / 'configs').glob('*.py'))]
    docs = ROOT / 'docs'
    counts = read_counts((docs / 'configs.md').read_text())
    for model in models:
        is_new = args.count or model.name not in counts
        if is_new and model.data not in SEQUENCES:
            counts[model.name] = count(model)

    written: dict[Path, str] = {}
    for page, name, table in (
        (docs / 'configs.md', 'models', config_tables(models, counts)),
        (docs / 'lra.md', 'models', sequence_table(models)),
        (docs / 'choose.md', 'models', choice_table(models)),
        (docs / 'choose.md', 'backbones', backbone_table()),
    ):
        text = written.get(page) or page.read_text()
        written[page] = with_table(text, name, table)

    changed = {path: text for path, text in written.items() if path.read_text() != text}
    names = listed((path.relative_to(ROOT) for path in changed), shown=None)
    if args.check and changed:
        raise UsageError(
            f'the tables of models are out of date: {names}; run python tools/dev/model_table.py'
        )
    for path, text in changed.items():
        path.write_text(text)
    if changed:
        print(f'changed: {names}')
    else:
        print('nothing to change')


if __name__ == '__main__':
    run_main(main)
