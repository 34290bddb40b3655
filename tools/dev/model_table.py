"""Keeps the list of models: what the configs say -> configs/metafile.yml -> the README's tables.

    python tools/dev/model_table.py              takes the words of every config, counts new ones, writes both files
    python tools/dev/model_table.py --count      counts all again, after a model has changed
    python tools/dev/model_table.py --check      changes nothing; exit status 2 if a file is out of date

A config's docstring begins 'MODEL, BACKBONE, DATA, SCHEDULE.' and has the line
'Expected METRIC: VALUE (SOURCE); ours: RESULT (SOURCE).'; metrics and values of two tasks stand as 'A / B'.
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path
from typing import Any

import yaml

from mmpola.messages import UsageError, run_main

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = '<!-- models: written by tools/dev/model_table.py -->', '<!-- end of models -->'
MODELS_KEY = '\nModels:\n'
REMEDY = 'run python tools/dev/model_table.py'

EXPECTED = re.compile(r'Expected (?P<metric>[^:]+): (?P<paper>[^;]+); ours: (?P<ours>.+)\.$', re.MULTILINE)
VALUE = re.compile(r'(?P<values>[^()]+?)(?: \((?P<source>.+)\))?$')

IMAGE_SIZES = {'COCO': (800, 1280), 'ADE20K': (512, 512), 'ImageNet-1k': None, 'generated shapes': None}
"""Data set -> (height, width) at which multiply-accumulates are counted; None: the backbone's training size. Its order
is that of the README's tables."""

TASKS = {
    'box AP': 'Object Detection',
    'mask AP': 'Instance Segmentation',
    'mIoU': 'Semantic Segmentation',
    'top-1': 'Image Classification',
}
"""What a metric's name contains -> the task."""

Entry = dict[str, Any]


def stated(config: Path) -> Entry:
    """A config's metafile entry as far as its docstring goes: no collection, image size or counts.

    Raises:
        UsageError: the docstring lacks a part, or names unknown data or an unknown metric.
    """
    text = ast.get_docstring(ast.parse(config.read_text())) or ''
    parts = text.split('\n', 1)[0].rstrip('.').split(', ')
    place = next((index for index, part in enumerate(parts) if part in IMAGE_SIZES), 0)
    expected = EXPECTED.search(text)
    if expected is None or not 2 <= place < len(parts) - 1:
        raise UsageError(
            f"{config}: the docstring must begin 'MODEL, BACKBONE, DATA, SCHEDULE.', DATA being one of "
            f"{', '.join(IMAGE_SIZES)}, and have a line 'Expected METRIC: VALUE (SOURCE); ours: RESULT.'"
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
    """'44.8 / 40.5 (paper, table 2)' -> a number per metric, the source; words such as 'not yet run' stay words."""
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
    raise UsageError(f'{config}: expected a metric with one of {", ".join(TASKS)} in its name, got {metric!r}')


def complete(entry: Entry) -> Entry:
    """A stated entry with its collection, image size, parameters and multiply-accumulates, from the config itself.

    Raises:
        UsageError: the backbone is no collection of the metafile.
    """
    from mmengine.config import Config

    from mmpola.engine.flops import count_model  # MMEngine, which a check can do without

    cfg = Config.fromfile(ROOT / entry['Config'])
    backbone = cfg.model.backbone
    collection = backbone.type.removeprefix('mmpola.')
    if collection not in [known['Name'] for known in read_metafile()['Collections']]:
        raise UsageError(f'configs/metafile.yml: {collection}, the backbone of {entry["Config"]}, is no collection')
    trained_at = backbone.get('pretrain_img_size', 224)
    trained = (trained_at, trained_at) if isinstance(trained_at, int) else trained_at
    height, width = IMAGE_SIZES[entry['Metadata']['Training Data']] or trained
    parameters, macs = count_model(cfg, height, width)
    counted = {'Image Size': f'{height} x {width}', 'Parameters': parameters, 'FLOPs': macs}
    return _entry(entry, {'In Collection': collection, 'Metadata': counted})


def _entry(entry: Entry, counted: Entry) -> Entry:
    """The two halves of an entry in the order in which the metafile has them."""
    return {
        'Name': entry['Name'],
        'In Collection': counted['In Collection'],
        'Config': entry['Config'],
        'Metadata': {
            **entry['Metadata'],
            **{key: counted['Metadata'][key] for key in ('Image Size', 'Parameters', 'FLOPs')},
        },
        'Results': entry['Results'],
    }


def read_metafile() -> dict[str, Any]:
    """configs/metafile.yml; `Models` may still be missing in it."""
    return {'Models': [], **yaml.safe_load((ROOT / 'configs' / 'metafile.yml').read_text())}


def tables(entries: list[Entry]) -> str:
    """The README's tables in Markdown, one per data set."""
    written = []
    for data in IMAGE_SIZES:
        rows = [entry for entry in entries if entry['Metadata']['Training Data'] == data]
        if not rows:
            continue
        metrics = max((_metrics(entry, 'Metrics') for entry in rows), key=len)
        sizes = {entry['Metadata']['Image Size'] for entry in rows}
        size = sizes.pop() if len(sizes) == 1 else None
        written += [
            f'{data[0].upper()}{data[1:]}: {" / ".join(metrics)}' + (f'; MACs at {size}' if size else ''),
            '',
            '| config | model | parameters | MACs | paper | ours |',
            '| --- | --- | --- | --- | --- | --- |',
            *(_row(entry, own_size=size is None) for entry in rows),
            '',
        ]
    return '\n'.join(written[:-1])


def _row(entry: Entry, own_size: bool) -> str:
    about, source = entry['Metadata'], entry['Results'][0].get('Source')
    paper, ours = _metrics(entry, 'Paper Metrics'), _metrics(entry, 'Metrics')
    cells = (
        f'[{entry["Name"]}]({entry["Config"]})',
        f'{about["Model"]}, {about["Backbone"]}, {about["Schedule"]}',
        f'{about["Parameters"] / 1e6:.1f} M',
        f'{about["FLOPs"] / 1e9:.1f} G' + (f' at {about["Image Size"]}' if own_size else ''),
        _printed(paper) if all(isinstance(value, float) for value in paper.values()) else '-',
        _printed(ours) + (f' ({source})' if source else ''),
    )
    return f'| {" | ".join(cells)} |'


def _metrics(entry: Entry, key: str) -> dict[str, float | str]:
    return {metric: value for result in entry['Results'] for metric, value in result[key].items()}


def _printed(values: dict[str, float | str]) -> str:
    """'44.8 / 40.5', or the words that stand for all."""
    return ' / '.join(dict.fromkeys(map(str, values.values())))


def with_tables(page: Path, entries: list[Entry]) -> str:
    """The page's text with the tables between its two markers.

    Raises:
        UsageError: a marker is missing.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f'{page}: the lines {BEGIN} and {END} must stand in it')
    return f'{before}{BEGIN}\n\n{tables(entries)}\n\n{END}{after}'


def check(configs: list[Path], entries: list[Entry], page: Path) -> None:
    """Raise UsageError unless metafile and README say what the configs do."""
    problems = []
    listed = {entry['Name']: entry for entry in entries}
    for name in sorted(listed.keys() ^ {config.stem for config in configs}):
        problems.append(
            f'configs/{name}.py: ' + ('no such config' if name in listed else 'not in configs/metafile.yml')
        )
    for config in configs:
        entry = listed.get(config.stem)
        if entry is not None and _entry(stated(config), entry) != entry:
            problems.append(f'configs/{config.name}: its docstring and configs/metafile.yml differ')
    if not problems and with_tables(page, entries) != page.read_text():
        problems.append(f'{page.name}: the tables differ from configs/metafile.yml')
    if problems:
        raise UsageError('the list of models is out of date; ' + '\n  '.join([REMEDY, *problems]))


def main() -> None:
    parser = argparse.ArgumentParser(description='Keep configs/metafile.yml and the tables of the README')
    what = parser.add_mutually_exclusive_group()
    what.add_argument('--check', action='store_true', help='change nothing; fail if a file is out of date')
    what.add_argument('--count', action='store_true', help='count every model again, not only new ones')
    args = parser.parse_args()
    configs, page = sorted((ROOT / 'configs').glob('*.py')), ROOT / 'README.md'
    entries = read_metafile()['Models']
    if args.check:
        check(configs, entries, page)
        return
    listed = {} if args.count else {entry['Name']: entry for entry in entries}
    entries = []
    for config in configs:
        entry, known = stated(config), listed.get(config.stem)
        entries.append(complete(entry) if known is None else _entry(entry, known))
    metafile = ROOT / 'configs' / 'metafile.yml'
    head = metafile.read_text().partition(MODELS_KEY)[0].rstrip('\n')
    models = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=120)
    written = with_tables(page, entries)
    metafile.write_text(f'{head}{MODELS_KEY}{models}')
    page.write_text(written)


if __name__ == '__main__':
    run_main(main)
