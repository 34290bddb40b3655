"""Updates the tables of models in README.md and docs/, and our models in docs/published.csv.

They come from configs/published.csv, from building and counting (docs/configs.md, docs/lra.md),
from the papers' figures in docs/published.csv (README.md, docs/choose.md and the plot of accuracy),
and from `python -m benchmarks.run zoo` (docs/choose.md).

    python tools/dev/model_table.py            counts new models, writes tables and plot
    python tools/dev/model_table.py --count    counts every model again, after a change of a model
    python tools/dev/model_table.py --check    writes nothing; exit status 2 if a file is outdated
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from mmpola.checkpoint.hub import MODELS_WITH_WEIGHTS, short_name
from mmpola.files import write_atomically
from mmpola.messages import UsageError, listed, run_main

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the modules beside this one

from tools.dev import published
from tools.dev.config_rows import (
    COUNTS,
    IMAGE_SIZES,
    ROOT,
    SEQUENCES,
    Counts,
    Model,
    count,
    read_counts,
    read_models,
    rounded,
    stored_counts,
)

MEASURED = ROOT / 'benchmarks' / 'results' / 'cpu-2-threads' / 'zoo.json'
"""Result of `python -m benchmarks.run zoo`."""
BEGIN = '<!-- {}: written by tools/dev/model_table.py -->'
"""The line before a table, with its name."""
END = '<!-- end of {} -->'
"""The line after it."""


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    rule = ['---'] * len(heading)
    lines = []
    for cells in (heading, rule, *rows):
        lines.append(f'| {" | ".join(str(cell) for cell in cells)} |')
    return '\n'.join(lines)


def config_tables(models: list[Model], counts: dict[str, Counts]) -> str:
    """Return the tables of docs/configs.md in Markdown, one per data set."""
    sections = []
    for data in IMAGE_SIZES:
        members = [model for model in models if model.data == data and data not in SEQUENCES]
        if members:
            title = f'{data[0].upper()}{data[1:]}'
            sections.append(f'## {title}\n\n{config_table(members, counts)}')
    return '\n\n'.join(sections)


def config_table(models: list[Model], counts: dict[str, Counts]) -> str:
    """Return the table of a data set: first the configs for which the paper prints a result.

    An input size that all share stands in the heading; what else all share is left out, and so is a
    column without entries.
    """
    sizes = {counts[model.config].size for model in models}
    names = {model.model for model in models}
    metric = max((model.metric for model in models), key=len)  # 'box AP' is 'box AP / mask AP' too
    macs = 'MACs (G)'
    if len(sizes) == 1:
        macs = f'MACs (G), {counts[models[0].config].size}'
    heading = ['config', 'parameters (M)', macs]
    if len(sizes) > 1:
        heading.append('input')
    has_paper = any(model.printed != '-' for model in models)
    has_ours = any(model.reached != '-' for model in models)
    if has_paper:
        heading.append(f'{metric}, paper')
    if has_ours:
        heading.append(f'{metric}, ours')
    rows = []
    for model in sorted(models, key=lambda model: model.printed == '-'):
        counted = counts[model.config]
        link = f'[{model.config}](../configs/{model.config}.py)'
        title = f'{model.backbone}, {model.schedule}'
        if len(names) > 1 or len(models) == 1:
            title = f'{model.model}, {title}'
        row = [f'{link}<br>{title}', counted.parameters, counted.macs]
        if len(sizes) > 1:
            row.append(counted.size)
        if has_paper:
            row.append(model.printed)
        if has_ours:
            row.append(model.reached)
        rows.append(row)
    return markdown_table(heading, rows)


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
                variant = model.config.split('_', 2)[2]
                cells = rows.setdefault(variant, [f'`{variant}`: {model.backbone}'])
                cell = f'[{model.printed}](../configs/{model.config}.py)'
                if model.ours:
                    cell += f', ours: {model.reached}'
                cells.append(cell)
    return markdown_table(heading, rows.values())


def choice_table(models: list[Model]) -> str:
    """Return the table of docs/choose.md in Markdown: measured costs and the papers' results."""
    printed = {model.config: model.printed for model in models}
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
        if name in MODELS_WITH_WEIGHTS:
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
    """Return the table of backbones in Markdown: how a config names them, and their channels."""
    import torch

    from mmpola.backbones import named_backbone
    from mmpola.zoo import ARCHITECTURES

    names: dict[tuple[str, str], list[str]] = {}
    for name in ARCHITECTURES:
        cls, arguments = named_backbone(name)
        with torch.device('meta'):
            model = cls(**arguments)
        channels = list(model.embed_dims)
        if len(set(channels)) == 1:  # blocks of one resolution: each counts as a stage
            channels = channels[:1]
        key = (f'`mmpola.{cls.__name__}`', f'`{channels}`')
        names.setdefault(key, []).append(f'`{arguments["arch"]}`')
    rows = [(cls, ', '.join(archs), channels) for (cls, channels), archs in names.items()]
    return markdown_table(('`type`', '`arch`', 'channels'), rows)


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
    models = read_models()
    counts = read_counts()
    for model in models:
        is_new = args.count or model.config not in counts
        if is_new and model.data not in SEQUENCES:
            counts[model.config] = count(model)
    written = with_tables(models, counts)
    written[COUNTS] = stored_counts(models, counts)
    written[published.FIGURES] = published.text_of_figures()
    changed = {path: text for path, text in written.items() if path.read_text() != text}
    outdated: list[Path] = list(changed)
    if not published.plot_is_current():
        outdated.append(published.PLOT)
    names = listed((path.relative_to(ROOT) for path in outdated), shown=None)
    if args.check and outdated:
        raise UsageError(
            f'the tables of models are out of date: {names}; run python tools/dev/model_table.py'
        )
    for path, text in changed.items():
        write_atomically(path, text)
    if published.PLOT in outdated:
        published.draw()
    if outdated:
        print(f'changed: {names}')
    else:
        print('nothing to change')


def with_tables(models: list[Model], counts: dict[str, Counts]) -> dict[Path, str]:
    """Return each page with its tables."""
    docs = ROOT / 'docs'
    readme = markdown_table(published.ACCURACY_HEADING, published.accuracy_rows())
    comparison = markdown_table(published.COMPARISON_HEADING, published.comparison_rows())
    written: dict[Path, str] = {}
    for page, name, table in (
        (ROOT / 'README.md', 'accuracy', readme),
        (docs / 'configs.md', 'models', config_tables(models, counts)),
        (docs / 'lra.md', 'models', sequence_table(models)),
        (docs / 'choose.md', 'comparison', comparison),
        (docs / 'choose.md', 'models', choice_table(models)),
        (docs / 'configs.md', 'backbones', backbone_table()),
    ):
        text = written.get(page) or page.read_text()
        written[page] = with_table(text, name, table)
    return written


if __name__ == '__main__':
    run_main(main)
