"""Updates the lists of models: the configs' docstrings -> configs/metafile.yml -> README.md and the pages of docs/.

docs/models.md also gets the table of backbones, from the backbones themselves, and docs/choose.md what
`python -m benchmarks.run zoo` measured of them.

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
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from mmpola.checkpoint.hub import short_name
from mmpola.messages import UsageError, listed, run_main

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / 'benchmarks' / 'results' / 'cpu-2-threads' / 'zoo.json'
"""Result of `python -m benchmarks.run zoo`."""
BEGIN, END = '<!-- {}: written by tools/dev/model_table.py -->', '<!-- end of {} -->'
"""The lines around a table, with its name."""
MODELS_KEY = '\nModels:\n'
REMEDY = 'run python tools/dev/model_table.py'

EXPECTED = re.compile(r'Expected (?P<metric>[^:]+): (?P<paper>[^;]+); ours: (?P<ours>.+)\.$', re.MULTILINE)
VALUE = re.compile(r'(?P<values>[^()]+?)(?: \((?P<source>.+)\))?$')

IMAGE_SIZES = {
    'COCO': (800, 1280),
    'ADE20K': (512, 512),
    'ImageNet-1k': None,
    'your own classes': None,
    'generated shapes': None,
    **dict.fromkeys(('LRA ListOps', 'LRA Text', 'LRA Retrieval', 'LRA Pathfinder', 'LRA Image', 'generated ListOps')),
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

SEQUENCE_TASKS = ('listops', 'text', 'retrieval', 'pathfinder', 'image')

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

Entry = dict[str, Any]
Pages = dict[Path, dict[str, str]]
"""Page -> the text of each of its tables by name."""


def stated(config: Path) -> Entry:
    """Return the part of a config's metafile entry that its docstring states: no collection, image size or counts.

    Raises:
        UsageError: the docstring lacks a part, or names an unknown data set or metric.
    """
    text = ast.get_docstring(ast.parse(config.read_text())) or ''
    parts = text.split('\n', 1)[0].rstrip('.').split(', ')
    place = next((index for index, part in enumerate(parts) if part in IMAGE_SIZES), 0)
    expected = EXPECTED.search(text)
    if expected is None or not 2 <= place < len(parts) - 1:
        raise UsageError(
            f"{config}: expected a docstring that begins 'MODEL, BACKBONE, DATA, SCHEDULE.', with DATA one of "
            f"{', '.join(IMAGE_SIZES)}, and has a line 'Expected METRIC: VALUE (SOURCE); ours: RESULT.'"
        )
    metrics = expected['metric'].split(' / ')
    paper, ours = (_values(expected[who], metrics) for who in ('paper', 'ours'))
    return {
        'Name': config.stem,
        'Config': f'configs/{config.name}',
        'Metadata': {
            'Model': ', '.join(parts[: place - 1]),
            'Backbone': parts[place - 1],
            'Training Data': parts[place],
            'Schedule': ', '.join(parts[place + 1 :]),
        },
        'Results': [
            {
                'Task': _task(config, metric),
                'Dataset': parts[place],
                'Metrics': {metric: ours[0][metric]},
                **({'Source': ours[1]} if ours[1] else {}),
                'Paper Metrics': {metric: paper[0][metric]},
                **({'Paper Source': paper[1]} if paper[1] else {}),
            }
            for metric in metrics
        ],
    }


def _values(text: str, metrics: list[str]) -> tuple[dict[str, float | str], str | None]:
    """Parse '44.8 / 40.5 (paper, table 2)' to (a number per metric, the source); keep text such as 'not yet run'."""
    match = VALUE.match(text)
    words, source = (match['values'], match['source']) if match else (text, None)
    numbers = words.split(' / ')
    if len(numbers) == len(metrics) and all(re.fullmatch(r'\d+(\.\d+)?', number) for number in numbers):
        return dict(zip(metrics, map(float, numbers), strict=True)), source
    return dict.fromkeys(metrics, words), source


def _task(config: Path, metric: str) -> str:
    for word, task in TASKS.items():
        if word in metric:
            return task
    raise UsageError(f'{config}: expected a metric whose name contains one of {", ".join(TASKS)}, got {metric!r}')


def complete(entry: Entry) -> Entry:
    """Add the collection, image size, parameters and multiply-accumulates to an entry by building its model.

    Raises:
        UsageError: the metafile has no collection for the backbone.
    """
    from mmengine.config import Config

    from mmpola.engine.flops import count_model  # needs MMEngine; --check does not

    cfg = Config.fromfile(ROOT / entry['Config'])
    backbone = cfg.model.backbone
    collection = backbone.type.removeprefix('mmpola.')
    if collection not in [known['Name'] for known in read_metafile()['Collections']]:
        raise UsageError(
            f'configs/metafile.yml: expected an entry of Collections for {collection}, written by hand as for '
            f'PolaDeiT; it is the backbone of {entry["Config"]}'
        )
    key, size = 'Image Size', IMAGE_SIZES[entry['Metadata']['Training Data']]
    if 'length' in backbone:
        key, size = 'Sequence Length', (backbone.length,)
    elif size is None:
        trained_at = backbone.get('pretrain_img_size', 224)
        size = (trained_at, trained_at) if isinstance(trained_at, int) else trained_at
    parameters, macs = count_model(cfg, size)
    counted = {key: ' x '.join(map(str, size)), 'Parameters': parameters, 'FLOPs': macs}
    return _entry(entry, {'In Collection': collection, 'Metadata': counted})


def _entry(entry: Entry, counted: Entry) -> Entry:
    """Join the stated and the counted half of an entry, in the metafile's order of keys."""
    return {
        'Name': entry['Name'],
        'In Collection': counted['In Collection'],
        'Config': entry['Config'],
        'Metadata': {
            **entry['Metadata'],
            **{key: value for key in COUNTED_KEYS if (value := counted['Metadata'].get(key)) is not None},
        },
        'Results': entry['Results'],
    }


def read_metafile() -> dict[str, Any]:
    """Read configs/metafile.yml; `Models` is empty if the file has none yet."""
    return {'Models': [], **yaml.safe_load((ROOT / 'configs' / 'metafile.yml').read_text())}


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return '\n'.join(f'| {" | ".join(cells)} |' for cells in (columns, ['---'] * len(columns), *rows))


def tables(entries: list[Entry]) -> str:
    """Return the tables of a page in Markdown, one section per data set.

    What all rows of a section share, the metric and the image size, is stated above the table, otherwise in each row.
    """
    sections = []
    for data in IMAGE_SIZES:
        rows = [entry for entry in entries if entry['Metadata']['Training Data'] == data]
        if not rows:
            continue
        metrics = max((_metrics(entry, 'Metrics') for entry in rows), key=len)
        sizes = {_size(entry) for entry in rows}
        own_size = len(sizes) > 1
        own_metric = any(_metrics(entry, 'Metrics').keys() - metrics.keys() for entry in rows)
        stated_once = [] if own_metric else [f'Metric: {" / ".join(metrics)}.']
        stated_once += [] if own_size else [f'MACs at {sizes.pop()}.']
        columns = ('config', 'parameters (M)', 'MACs (G)', 'paper', 'ours')
        table = markdown(columns, [_cells(entry, own_size, own_metric) for entry in rows])
        sections += [f'## {data[0].upper()}{data[1:]}', *([' '.join(stated_once)] if stated_once else []), table]
    return '\n\n'.join(sections)


def sequence_table(entries: list[Entry]) -> str:
    """Return the table of the Long Range Arena in Markdown: a row per kind of attention, a column per task.

    A cell has the paper's accuracy and, once there is one, ours in brackets.
    """
    by_name = {entry['Name']: entry for entry in entries}
    prefix = f'lra_{SEQUENCE_TASKS[0]}_'
    variants = [
        name.removeprefix(prefix)
        for name in by_name
        if name.startswith(prefix)
        and all(f'lra_{task}_{name.removeprefix(prefix)}' in by_name for task in SEQUENCE_TASKS)
    ]
    rows = []
    for variant in variants:
        cells = []
        for task in SEQUENCE_TASKS:
            entry = by_name[f'lra_{task}_{variant}']
            paper, ours = _figures(entry)
            run = '' if ours == 'not yet run' else f' ({ours})'
            cells.append(f'[{paper}](../{entry["Config"]}){run}')
        about = by_name[f'{prefix}{variant}']['Metadata']['Backbone']
        rows.append([f'`{variant}`: {about}', *cells])
    return markdown(('attention', *SEQUENCE_TASKS), rows)


def choice_table(entries: list[Entry]) -> str:
    """Return the table of docs/choose.md in Markdown: a row per backbone, measured costs and the papers' results."""
    by_name = {entry['Name']: entry for entry in entries}
    released = (ROOT / 'docs' / 'weights.md').read_text()

    def paper(*configs: str) -> str:
        return next((_figures(by_name[name])[0] for name in configs if name in by_name), '-')

    columns = ('model', 'parameters (M)', 'GMACs', 'top-1', 'COCO box / mask AP', 'ADE20K mIoU', 'weights')
    rows = []
    for row in json.loads(MEASURED.read_text())['rows']:
        name = row['case']
        short = short_name(name)
        cells = [
            f'`{name}`',
            _rounded(row['parameters (M)']),
            _rounded(row['GMACs, 224x224']),
            paper(f'imagenet_{short}'),
            paper(f'mask_rcnn_{short}_1x'),
            paper(f'upernet_{short}_160k', f'semantic_fpn_{short}_40k'),
            'yes' if f'`mmpola://{name}`' in released else 'no',
            *(f'{row[f"ms, {size}"]:,.0f} ({row[f"MB, {size}"]:,.0f})' for size in ('224x224', '800x1333')),
        ]
        rows.append(cells)
    return markdown((*columns, '224 x 224, ms (MB)', '800 x 1333, ms (MB)'), rows)


def short_table(entries: list[Entry]) -> str:
    """Return the README's table in Markdown: the models of README_MODELS, of all data sets."""
    by_name = {entry['Name']: entry for entry in entries}
    rows = []
    for entry in (by_name[name] for name in README_MODELS):
        about, (paper, ours) = entry['Metadata'], _figures(entry)
        model = about['Model'].removeprefix('ImageNet-1k ')
        cells = (
            f'[{model[0].upper()}{model[1:]}, {about["Backbone"]}]({entry["Config"]})',
            f'{about["Training Data"]}, {about["Schedule"].split(" (")[0]}',
            ' / '.join(_metrics(entry, 'Metrics')),
            f'{about["Parameters"] / 1e6:.1f} M',
            paper,
            ours,
        )
        rows.append(cells)
    return markdown(('config', 'data set', 'metric', 'parameters', 'paper', 'ours'), rows)


def _cells(entry: Entry, own_size: bool, own_metric: bool) -> tuple[str, ...]:
    about, (paper, ours) = entry['Metadata'], _figures(entry)
    if own_metric:
        ours = f'{" / ".join(_metrics(entry, "Metrics"))}: {ours}'
    return (
        f'[{entry["Name"]}](../{entry["Config"]})<br>{about["Model"]}, {about["Backbone"]}, {about["Schedule"]}',
        _rounded(about['Parameters'] / 1e6),
        _rounded(about['FLOPs'] / 1e9) + (f' at {_size(entry)}' if own_size else ''),
        paper,
        ours,
    )


def _size(entry: Entry) -> str:
    about = entry['Metadata']
    return about['Image Size'] if 'Image Size' in about else f'{about["Sequence Length"]} tokens'


def _rounded(value: float) -> str:
    return f'{value:.1f}' if value >= 1 else f'{value:.2f}'


def _figures(entry: Entry) -> tuple[str, str]:
    """Return the cells of the paper's results ('-' if none are printed) and of ours with their source."""
    paper, source = _metrics(entry, 'Paper Metrics'), entry['Results'][0].get('Source')
    printed = _printed(paper) if all(isinstance(value, float) for value in paper.values()) else '-'
    return printed, _printed(_metrics(entry, 'Metrics')) + (f' ({source})' if source else '')


def _metrics(entry: Entry, key: str) -> dict[str, float | str]:
    return {metric: value for result in entry['Results'] for metric, value in result[key].items()}


def _printed(values: dict[str, float | str]) -> str:
    """Join values as in '44.8 / 40.5'; text that is the same for every metric is printed once."""
    return ' / '.join(dict.fromkeys(map(str, values.values())))


def backbone_table() -> str:
    """Return the table of backbones in Markdown: blocks, channels and strides of the stages of every `arch`."""
    import torch

    from mmpola.backbones.zoo import ARCHITECTURES

    rows = []
    for name, (cls, arguments) in ARCHITECTURES.items():
        with torch.device('meta'):
            model = cls(**arguments)
        settings = import_module(cls.__module__).ARCHS[arguments['arch']]
        blocks, channels, strides = settings.get('depths'), list(model.embed_dims), list(model.strides)
        if blocks is None:  # every block counts as a stage
            blocks, channels, strides = [settings['depth']], channels[:1], strides[:1]
        named = name, f'mmpola.{cls.__name__}', arguments['arch']
        rows.append([f'`{cell}`' for cell in (*named, list(blocks), channels, strides)])
    return markdown(('model', '`type`', '`arch`', 'blocks', 'channels', 'strides'), rows)


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


def check(configs: list[Path], entries: list[Entry], pages: Pages) -> None:
    """Raise UsageError unless the metafile agrees with the configs, and each page contains its tables."""
    problems = []
    by_name = {entry['Name']: entry for entry in entries}
    for name in sorted(by_name.keys() ^ {config.stem for config in configs}):
        problems.append(
            f'configs/{name}.py: ' + ('no such config' if name in by_name else 'missing in configs/metafile.yml')
        )
    for config in configs:
        entry = by_name.get(config.stem)
        if entry is not None and _entry(stated(config), entry) != entry:
            problems.append(f'configs/{config.name}: its docstring and configs/metafile.yml differ')
    if not problems:
        outdated = [page for page, tables in pages.items() if with_tables(page, tables) != page.read_text()]
        problems += [f'{page.name}: the tables differ from configs/metafile.yml or the backbones' for page in outdated]
    if problems:
        raise UsageError('the list of models is out of date; ' + '\n  '.join([REMEDY, *problems]))


def pages_of(entries: list[Entry]) -> Pages:
    """Return the tables of each page that shows models."""
    docs = ROOT / 'docs'
    pages: Pages = {
        docs / f'{page}.md': {'models': tables([e for e in entries if e['Metadata']['Training Data'] in data])}
        for page, data in PAGES.items()
    }
    pages[docs / 'models.md']['backbones'] = backbone_table()
    pages[docs / 'lra.md'] = {'models': sequence_table(entries)}
    pages[docs / 'choose.md'] = {'models': choice_table(entries)}
    return pages | {ROOT / 'README.md': {'models': short_table(entries)}}


def main() -> None:
    parser = argparse.ArgumentParser(description='Update configs/metafile.yml and the tables of models in the docs')
    what = parser.add_mutually_exclusive_group()
    what.add_argument('--check', action='store_true', help='change nothing; fail if a file is out of date')
    what.add_argument('--count', action='store_true', help='count every model again, not only new ones')
    args = parser.parse_args()
    configs, entries = sorted((ROOT / 'configs').glob('*.py')), read_metafile()['Models']
    if args.check:
        check(configs, entries, pages_of(entries))
        return
    counted = {} if args.count else {entry['Name']: entry for entry in entries}
    entries = []
    for config in configs:
        entry, known = stated(config), counted.get(config.stem)
        entries.append(complete(entry) if known is None else _entry(entry, known))
    metafile = ROOT / 'configs' / 'metafile.yml'
    head = metafile.read_text().partition(MODELS_KEY)[0].rstrip('\n')
    models = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=120)
    written = {page: with_tables(page, tables) for page, tables in pages_of(entries).items()}
    written[metafile] = f'{head}{MODELS_KEY}{models}'
    changed = [path for path, text in written.items() if path.read_text() != text]
    for path in changed:
        path.write_text(written[path])
    print(f'changed: {listed(path.relative_to(ROOT) for path in changed)}' if changed else 'nothing to change')


if __name__ == '__main__':
    run_main(main)
