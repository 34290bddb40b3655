"""Updates the lists of models: the configs' docstrings -> configs/metafile.yml -> README.md and the pages of docs/.

docs/models.md also gets the table of backbones, from the backbones themselves, and docs/choose.md
what `python -m benchmarks.run zoo` measured of them.

    python tools/dev/model_table.py              reads every docstring, counts new models, writes the files
    python tools/dev/model_table.py --count      counts every model again, after a backbone or a head has changed
    python tools/dev/model_table.py --check      changes nothing; exit status 2 if a file is out of date

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
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from mmpola.checkpoint.hub import PUBLISHED_MODELS, short_name
from mmpola.messages import UsageError, listed, run_main

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / 'benchmarks' / 'results' / 'cpu-2-threads' / 'zoo.json'
"""Result of `python -m benchmarks.run zoo`."""
BEGIN, END = '<!-- {}: written by tools/dev/model_table.py -->', '<!-- end of {} -->'
"""The lines around a table, with its name."""
MODELS_KEY = '\nModels:\n'

SEQUENCES = ('LRA ListOps', 'LRA Text', 'LRA Retrieval', 'LRA Pathfinder', 'LRA Image')

IMAGE_SIZES = {
    'COCO': (800, 1280),
    'ADE20K': (512, 512),
    'ImageNet-1k': None,
    'your own classes': None,
    'generated shapes': None,
    **dict.fromkeys(SEQUENCES),
    'generated ListOps': None,
}
"""Data set -> (height, width) at which multiply-accumulates are counted; None: the backbone's training size, or the
length of its longest sequence. The tables of a page follow this order."""

PAGES = {
    'models_detection': ('COCO',),
    'models_segmentation': ('ADE20K',),
    'models_classification': ('ImageNet-1k', 'your own classes'),
    'models': ('generated shapes', 'generated ListOps'),
}
"""Page of docs/ -> the data sets of the configs that it lists; those of the Long Range Arena are in docs/lra.md."""

COUNTED_KEYS = ('Image Size', 'Sequence Length', 'Parameters', 'FLOPs')
"""Keys of the metafile that follow from the built model; an entry has one of the two sizes."""

README_MODELS = (
    'imagenet_pola_pvt_t',
    'imagenet_pola_pvt_s',
    'imagenet_pola_swin_t',
    'imagenet_pola_swin_b',
    'imagenet_polaformer_pp_b2',
    'imagenet_polaformer_pp_b5',
    'mask_rcnn_pola_pvt_t_1x',
    'mask_rcnn_pola_swin_t_1x',
    'cascade_mask_rcnn_pola_swin_t_3x',
    'upernet_pola_swin_t_160k',
)
"""The configs in the README's short table."""

TASKS = {
    'box AP': 'Object Detection',
    'mask AP': 'Instance Segmentation',
    'mIoU': 'Semantic Segmentation',
    'top-1': 'Image Classification',
    'accuracy': 'Sequence Classification',
}
"""Part of a metric's name -> the task that the metric measures."""

TITLE = re.compile(
    rf'(?P<model>.+), (?P<backbone>[^,]+), (?P<data>{"|".join(map(re.escape, IMAGE_SIZES))}), (?P<schedule>.+)\.'
)
EXPECTED = re.compile(
    r'Expected (?P<metric>[^:]+): (?P<paper>[^(;]+?)(?: \((?P<paper_source>[^;]+)\))?; '
    r'ours: (?P<ours>[^(]+?)(?: \((?P<ours_source>.+)\))?\.$',
    re.MULTILINE,
)

Pages = dict[Path, dict[str, str]]
"""Page -> the text of each of its tables by name."""


@dataclass
class Model:
    """A config in the lists: the words of its docstring, and what was counted of the model that it builds.

    Attributes:
        metric, paper, ours: for two tasks 'A / B'; the results may be text such as 'not yet run'.
        collection: of the metafile.
        counts: the metafile's `COUNTED_KEYS`.
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
    collection: str = ''
    counts: dict[str, Any] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """Return the config's entry in the metafile.

        Raises:
            UsageError: a metric is of no known task.
        """
        metrics, results = self.metric.split(' / '), []
        for metric, paper, ours in zip(
            metrics, _values(self.paper, metrics), _values(self.ours, metrics), strict=True
        ):
            result = {
                'Task': next((task for part, task in TASKS.items() if part in metric), None),
                'Dataset': self.data,
                'Metrics': {metric: ours},
                'Source': self.ours_source,
                'Paper Metrics': {metric: paper},
                'Paper Source': self.paper_source,
            }
            if result['Task'] is None:
                known = ', '.join(TASKS)
                raise UsageError(
                    f'{self.name}: expected a metric whose name contains one of {known}, got {metric!r}'
                )
            results.append({key: value for key, value in result.items() if value is not None})
        about = {
            'Model': self.model,
            'Backbone': self.backbone,
            'Training Data': self.data,
            'Schedule': self.schedule,
        }
        return {
            'Name': self.name,
            'In Collection': self.collection,
            'Config': f'configs/{self.name}.py',
            'Metadata': about | self.counts,
            'Results': results,
        }

    @property
    def size(self) -> str:
        """The input for which multiply-accumulates were counted."""
        return self.counts.get('Image Size') or f'{self.counts["Sequence Length"]} tokens'

    @property
    def printed(self) -> str:
        """The paper's results, '-' if none are printed."""
        return self.paper if self.paper[0].isdigit() else '-'

    @property
    def reached(self) -> str:
        """Our results with their source."""
        return self.ours + (f' ({self.ours_source})' if self.ours_source else '')


def stated(config: Path) -> Model:
    """Return what a config's docstring states.

    Raises:
        UsageError: the docstring lacks a part, or names an unknown data set.
    """
    text = ast.get_docstring(ast.parse(config.read_text())) or ''
    title, expected = TITLE.match(text), EXPECTED.search(text)
    if title is None or expected is None:
        raise UsageError(
            f"{config}: expected a docstring that begins 'MODEL, BACKBONE, DATA, SCHEDULE.', with DATA one of "
            f"{', '.join(IMAGE_SIZES)}, and has a line 'Expected METRIC: VALUE (SOURCE); ours: RESULT.'"
        )
    words: dict[str, Any] = title.groupdict() | expected.groupdict()
    return Model(config.stem, **words)


def _values(text: str, metrics: list[str]) -> list[float] | list[str]:
    """Return a number for each metric, or the same text for each if there are no numbers."""
    numbers = text.split(' / ')
    if len(numbers) == len(metrics) and all(
        re.fullmatch(r'\d+(\.\d+)?', number) for number in numbers
    ):
        return [float(number) for number in numbers]
    return [text] * len(metrics)


def count(model: Model) -> None:
    """Set the collection, image size, parameters and multiply-accumulates of a config by building its model.

    Raises:
        UsageError: the metafile has no collection for the backbone.
    """
    from mmengine.config import Config

    from mmpola.apps.publish.flops import (
        count_model,
    )  # needs MMEngine; --check does not, if every model is counted

    cfg = Config.fromfile(ROOT / 'configs' / f'{model.name}.py')
    backbone = cfg.model.backbone
    model.collection = backbone.type.removeprefix('mmpola.')
    if model.collection not in [known['Name'] for known in read_metafile()['Collections']]:
        raise UsageError(
            f'configs/metafile.yml: expected an entry of Collections for {model.collection}, written by hand as for '
            f'PolaDeiT; it is the backbone of configs/{model.name}.py'
        )
    key, size = 'Image Size', IMAGE_SIZES[model.data]
    if 'length' in backbone:
        key, size = 'Sequence Length', (backbone.length,)
    elif size is None:
        trained_at = backbone.get('pretrain_img_size', 224)
        size = (trained_at, trained_at) if isinstance(trained_at, int) else trained_at
    parameters, macs = count_model(cfg, size)
    model.counts = {key: ' x '.join(map(str, size)), 'Parameters': parameters, 'FLOPs': macs}


def read_metafile() -> dict[str, Any]:
    """Read configs/metafile.yml; `Models` is empty if the file has none yet."""
    return {'Models': [], **yaml.safe_load((ROOT / 'configs' / 'metafile.yml').read_text())}


def _table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heading, ['---'] * len(heading), *rows]
    return '\n'.join(f'| {" | ".join(map(str, cells))} |' for cells in lines)


def tables(models: list[Model]) -> str:
    """Return the tables of a page in Markdown, one section per data set.

    What all rows of a section share, the metric and the image size, is stated above the table,
    otherwise in each row.
    """
    written = []
    for data in IMAGE_SIZES:
        found = [model for model in models if model.data == data]
        if not found:
            continue
        metric, sizes = (
            max((model.metric for model in found), key=len),
            {model.size for model in found},
        )
        own_metric, own_size = any(model.metric not in metric for model in found), len(sizes) > 1
        shared = [] if own_metric else [f'Metric: {metric}.']
        shared += [] if own_size else [f'MACs at {sizes.pop()}.']
        rows = [
            (
                f'[{model.name}](../configs/{model.name}.py)<br>{model.model}, {model.backbone}, {model.schedule}',
                _rounded(model.counts['Parameters'] / 1e6),
                _rounded(model.counts['FLOPs'] / 1e9) + (f' at {model.size}' if own_size else ''),
                model.printed,
                (f'{model.metric}: ' if own_metric else '') + model.reached,
            )
            for model in found
        ]
        written += [f'## {data[0].upper()}{data[1:]}', *([' '.join(shared)] if shared else [])]
        written.append(_table(('config', 'parameters (M)', 'MACs (G)', 'paper', 'ours'), rows))
    return '\n\n'.join(written)


def sequence_table(models: list[Model]) -> str:
    """Return the table of the Long Range Arena in Markdown: a row per kind of attention, a column per task.

    A cell has the paper's accuracy and, once there is one, ours in brackets.
    """
    rows: dict[str, list[str]] = {}
    for data in SEQUENCES:
        for model in (model for model in models if model.data == data):
            variant = model.name.split('_', 2)[2]
            run = '' if model.ours == 'not yet run' else f' ({model.reached})'
            cells = rows.setdefault(variant, [f'`{variant}`: {model.backbone}'])
            cells.append(f'[{model.printed}](../configs/{model.name}.py){run}')
    return _table(
        ['attention', *(data.removeprefix('LRA ').lower() for data in SEQUENCES)], rows.values()
    )


def choice_table(models: list[Model]) -> str:
    """Return the table of docs/choose.md in Markdown: a row per backbone, measured costs and the papers' results."""
    printed = {model.name: model.printed for model in models}
    heading = (
        'model',
        'parameters (M)',
        'GMACs',
        'top-1',
        'COCO box / mask AP',
        'ADE20K mIoU',
        'weights',
    )
    sizes, rows = ('224x224', '800x1333'), []
    for row in json.loads(MEASURED.read_text())['rows']:
        name = row['case']
        short = short_name(name)
        segmenter = printed.get(f'upernet_{short}_160k') or printed.get(
            f'semantic_fpn_{short}_40k', '-'
        )
        rows.append(
            (
                f'`{name}`',
                _rounded(row['parameters (M)']),
                _rounded(row['GMACs, 224x224']),
                printed.get(f'imagenet_{short}', '-'),
                printed.get(f'mask_rcnn_{short}_1x', '-'),
                segmenter,
                _weights(name),
                *(f'{row[f"ms, {size}"]:,.0f} ({row[f"MB, {size}"]:,.0f})' for size in sizes),
            )
        )
    return _table((*heading, *(f'{size.replace("x", " x ")}, ms (MB)' for size in sizes)), rows)


def _weights(name: str) -> str:
    """Return whether a model's weights are published, as `docs/weights.md` explains."""
    if name in PUBLISHED_MODELS:
        return 'yes'
    return 'by hand' if name.startswith('polaformer_pp_') else 'no'


def short_table(models: list[Model]) -> str:
    """Return the README's table in Markdown: the models of README_MODELS, of all data sets."""
    by_name, rows = {model.name: model for model in models}, []
    for model in (by_name[name] for name in README_MODELS):
        what = model.model.removeprefix('ImageNet-1k ')
        rows.append(
            (
                f'[{what[0].upper()}{what[1:]}, {model.backbone}](configs/{model.name}.py)',
                f'{model.data}, {model.schedule.split(" (")[0]}',
                model.metric,
                f'{model.counts["Parameters"] / 1e6:.1f} M',
                model.printed,
                model.reached,
            )
        )
    return _table(('config', 'data set', 'metric', 'parameters', 'paper', 'ours'), rows)


def _rounded(value: float) -> str:
    return f'{value:.1f}' if value >= 1 else f'{value:.2f}'


def backbone_table() -> str:
    """Return the table of backbones in Markdown: blocks, channels and strides of the stages of every `arch`."""
    import torch

    from mmpola.backbones.zoo import ARCHITECTURES

    rows = []
    for name, (cls, arguments) in ARCHITECTURES.items():
        with torch.device('meta'):
            model = cls(**arguments)
        settings = import_module(cls.__module__).ARCHS[arguments['arch']]
        blocks, channels, strides = (
            settings.get('depths'),
            list(model.embed_dims),
            list(model.strides),
        )
        if blocks is None:  # every block counts as a stage
            blocks, channels, strides = [settings['depth']], channels[:1], strides[:1]
        named = name, f'mmpola.{cls.__name__}', arguments['arch']
        rows.append([f'`{cell}`' for cell in (*named, list(blocks), channels, strides)])
    return _table(('model', '`type`', '`arch`', 'blocks', 'channels', 'strides'), rows)


def with_tables(page: Path, tables: dict[str, str]) -> str:
    """Return the page's text with each table, or group of tables, between its two markers.

    Raises:
        UsageError: a marker is missing.
    """
    text = page.read_text()
    for name, table in tables.items():
        first, last = BEGIN.format(name), END.format(name)
        before, begin, rest = text.partition(first)
        _, end, after = rest.partition(last)
        if not begin or not end:
            raise UsageError(f'{page}: expected the lines {first} and {last}')
        text = f'{before}{begin}\n\n{table}\n\n{end}{after}'
    return text


def pages_of(models: list[Model]) -> Pages:
    """Return the tables of each page that shows models."""
    docs = ROOT / 'docs'
    pages = {
        docs / f'{page}.md': {'models': tables([model for model in models if model.data in data])}
        for page, data in PAGES.items()
    }
    pages[docs / 'models.md']['backbones'] = backbone_table()
    pages[docs / 'lra.md'] = {'models': sequence_table(models)}
    pages[docs / 'choose.md'] = {'models': choice_table(models)}
    return pages | {ROOT / 'README.md': {'models': short_table(models)}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Update configs/metafile.yml and the tables of models in the docs'
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        '--check', action='store_true', help='change nothing; fail if a file is out of date'
    )
    what.add_argument(
        '--count', action='store_true', help='count every model again, not only new ones'
    )
    args = parser.parse_args()
    models = [stated(config) for config in sorted((ROOT / 'configs').glob('*.py'))]
    known = {} if args.count else {entry['Name']: entry for entry in read_metafile()['Models']}
    for model in models:
        if entry := known.get(model.name):
            model.collection = entry['In Collection']
            model.counts = {
                key: value for key, value in entry['Metadata'].items() if key in COUNTED_KEYS
            }
        else:
            count(model)
    metafile = ROOT / 'configs' / 'metafile.yml'
    head = metafile.read_text().partition(MODELS_KEY)[0].rstrip('\n')
    entries = [model.entry() for model in models]
    written = {page: with_tables(page, tables) for page, tables in pages_of(models).items()}
    written[metafile] = (
        head + MODELS_KEY + yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=120)
    )
    changed = {path: text for path, text in written.items() if path.read_text() != text}
    names = listed((path.relative_to(ROOT) for path in changed), shown=None)
    if args.check and changed:
        raise UsageError(
            f'the list of models is out of date: {names}; run python tools/dev/model_table.py'
        )
    for path, text in changed.items():
        path.write_text(text)
    print(f'changed: {names}' if changed else 'nothing to change')


if __name__ == '__main__':
    run_main(main)
