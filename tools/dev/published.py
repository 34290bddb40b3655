"""The papers' figures of docs/published.csv: the tables and the plot that show them.

tools/dev/model_table.py writes them into README.md and docs/. A row of the file has accuracies in
percent, parameters in millions and multiply-accumulates in thousand millions (at 224 x 224), all as
the source prints them; 'shown in' names the tables of README.md and docs/choose.md, and the
plot. Accuracies of mmpola's models come from configs/published.csv, and model_table.py writes
them into this file too.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable
from pathlib import Path

from mmpola.files import write_figure
from tools.dev.config_rows import ROOT, read_models

FIGURES = ROOT / 'docs' / 'published.csv'
PLOT = ROOT / 'docs' / 'accuracy.png'

POLAFORMER = 'PolaFormer'
POLAFORMER_PP = 'PolaFormer++'
SOURCES = {
    POLAFORMER: 'https://arxiv.org/abs/2501.15061',
    POLAFORMER_PP: 'https://github.com/ZacharyMeng/PolaFormerPP',
    'Swin': 'https://github.com/microsoft/Swin-Transformer',
    'its detectors': 'https://github.com/SwinTransformer/Swin-Transformer-Object-Detection',
    'PVT': 'https://github.com/whai362/PVT',
    'Agent': 'https://github.com/LeapLabTHU/Agent-Attention',
    'InLine': 'https://github.com/LeapLabTHU/InLine',
    'MLLA': 'https://github.com/LeapLabTHU/MLLA',
    'VMamba': 'https://github.com/MzeroMiko/VMamba',
    'RALA': 'https://github.com/qhfan/RALA',
    'NaLaFormer': 'https://github.com/ZacharyMeng/NaLaFormer',
    'CARE': 'https://github.com/zhouyuan888888/CARE-Transformer',
    'MambaVision': 'https://github.com/NVlabs/MambaVision',
}
"""Where the figures were published."""

FAMILIES = {
    'Pola-Swin': ('Pola-Swin-', '#d55e00', 's', '-'),
    'Swin': ('Swin-', '#d55e00', 's', '--'),
    'Pola-PVT': ('Pola-PVT-', '#0072b2', 'o', '-'),
    'PVT': ('PVT-', '#0072b2', 'o', '--'),
    'PolaFormer++': ('PolaFormer++ ', '#009e73', '^', '-'),
}
"""Lines of the plot: how the names of their models begin, colour, marker, line."""

GREY = '#555555'
SIDES = {'RAVLT-T': (-12, 8), 'MLLA-T': (24, -4), 'VMamba-T': (30, -11)}
"""Offset of a name from its point, in points of 1/72 inch, where it would hide another one."""

DRAWN_FROM = 'Description'
"""Key of the plot's metadata that holds the hash of the figures."""

Row = dict[str, str]


def published(shown_in: str | None = None) -> list[Row]:
    """Return all rows, or those that a table or the plot shows ('README', 'choose' or 'plot')."""
    with FIGURES.open(newline='') as file:
        rows = list(csv.DictReader(file))
    printed = {model.config: model.paper for model in read_models() if model.printed != '-'}
    for row in rows:
        if is_ours(row):
            name = config_name(row['model'])
            row['top-1'] = printed[f'imagenet_{name}']
            row['AP'] = printed.get(f'mask_rcnn_{name}_1x', '')
            row['mIoU'] = printed.get(f'upernet_{name}_160k', '')
            if f'semantic_fpn_{name}_40k' in printed:
                row['mIoU'] = f'{printed[f"semantic_fpn_{name}_40k"]} (FPN)'
    return [row for row in rows if shown_in is None or shown_in in row['shown in'].split()]


def text_of_figures() -> str:
    """Return what docs/published.csv should be."""
    rows = published()
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def is_ours(row: Row) -> bool:
    """Whether mmpola has the model."""
    return row['source'] in (POLAFORMER, POLAFORMER_PP)


def config_name(model: str) -> str:
    """Return how configs name a model, for example pola_pvt_t for Pola-PVT-T."""
    name = model.lower().replace('polaformer++', 'polaformer_pp')
    return name.replace('-', '_').replace(' ', '_')


def links(source: str) -> str:
    """Return the sources of a row as links in Markdown."""
    return ', '.join(f'[{name}]({SOURCES[name]})' for name in source.split(' + '))


def cost(row: Row) -> str:
    """Return parameters and multiply-accumulates as printed, for example '28 M / 4.5 G'."""
    return f'{row["parameters"]} M / {row["MACs"]} G'


def accuracy_rows() -> Iterable[list[str]]:
    """Yield the rows of README.md's table, whose figures link to their configs."""
    for row in published('README'):
        model = row['model']
        top1 = row['top-1']
        boxes = row['AP'] or 'not published'
        weights = ''
        if is_ours(row):
            name = config_name(model)
            model = f'**{model}**'
            top1 = f'[{top1}](configs/imagenet_{name}.py)'
            boxes = f'[{boxes}](configs/mask_rcnn_{name}_1x.py)'
            text = 'ImageNet'
            section = 'polaformer-five-models-that-download-themselves'
            if row['source'] == POLAFORMER_PP:
                text = 'ImageNet, by hand'
                section = 'polaformer-by-hand'
            weights = f'[{text}](docs/weights.md#{section})'
        yield [model, top1, boxes, cost(row), weights, links(row['source'])]


ACCURACY_HEADING = (
    'model',
    'top-1',
    'Mask R-CNN 1x: box / mask AP',
    'parameters / MACs',
    'weights',
    'source of the figures',
)

COMPARISON_HEADING = (
    'model',
    'top-1',
    'box / mask AP',
    'image sizes in training',
    'mIoU',
    'parameters / MACs',
    'trained detectors',
    'source',
)


def comparison_rows() -> Iterable[list[str]]:
    """Yield the rows of the comparison with other backbones."""
    for row in published('choose'):
        model = row['model']
        if is_ours(row):
            model = f'**{model}**'
        yield [
            model,
            row['top-1'],
            row['AP'] or '-',
            row['recipe'],
            row['mIoU'] or '-',
            cost(row),
            row['detectors'],
            links(row['source']),
        ]


def plot_is_current() -> bool:
    """Whether the plot was drawn from the figures as they are."""
    from PIL import Image

    if not PLOT.exists():
        return False
    with Image.open(PLOT) as image:
        return image.info.get(DRAWN_FROM) == fingerprint()


def fingerprint() -> str:
    """Return a hash of the figures."""
    return hashlib.sha256(text_of_figures().encode()).hexdigest()


def draw(path: Path = PLOT) -> None:
    """Draw top-1 accuracy over multiply-accumulates: a line per family, other models as names."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    pyplot.rcParams['font.size'] = 12  # readable on a phone, where the figure is 350 pixels wide
    figure, axes = pyplot.subplots(figsize=(5.2, 4.2), layout='constrained')
    rows = {row['model']: row for row in published('plot')}
    for label, (beginning, colour, marker, line) in FAMILIES.items():
        members = [row for name, row in rows.items() if name.startswith(beginning)]
        macs = [float(row['MACs']) for row in members]
        accuracy = [float(row['top-1']) for row in members]
        face = colour if line == '-' else 'white'
        axes.plot(
            macs, accuracy, line, color=colour, marker=marker, markerfacecolor=face, label=label
        )
        for row in members:
            del rows[row['model']]
    for name, row in rows.items():
        point = (float(row['MACs']), float(row['top-1']))
        axes.plot(*point, 'x', color=GREY)
        side = SIDES.get(name, (0, 5))
        axes.annotate(
            name,
            point,
            xytext=side,
            textcoords='offset points',
            ha='center',
            fontsize=9,
            color=GREY,
        )
    axes.set_xlabel('multiply-accumulates at 224 x 224, in G')
    axes.set_ylabel('top-1 on ImageNet-1k, in percent')
    axes.grid(alpha=0.25)
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(loc='lower right', frameon=False)
    write_figure(path, figure, dpi=200, metadata={DRAWN_FROM: fingerprint()})
    pyplot.close(figure)
