"""Sentences of the pages that count or give figures agree with the configs and the results."""

import json
import re
from statistics import mean

import pytest

from mmpola.zoo import NAMED
from tests.helpers import ROOT
from tools.dev.config_rows import read_models
from tools.dev.published import published

COUNT_WORDS = {2: 'two', 3: 'three', 4: 'four', 5: 'five', 6: 'six', 7: 'seven'}
TASKS = ('text', 'listops', 'retrieval', 'pathfinder', 'image')
CPU = ROOT / 'benchmarks' / 'results' / 'cpu-2-threads'


def words(page):
    """Return the text of a page as one line."""
    return ' '.join((ROOT / page).read_text().split())


def rows(suite):
    results = json.loads((CPU / f'{suite}.json').read_text())['rows']
    return {row['case']: row for row in results}


def accuracies(variant):
    """Return the paper's accuracies of a kind of attention in Table 4, [] if it has none."""
    printed = {model.config: model.printed for model in read_models()}
    figures = [printed[f'lra_{task}_{variant}'] for task in TASKS]
    return [float(figure) for figure in figures if figure != '-']


def test_rows_and_averages_of_table_4():
    variants = {path.stem.split('_', 2)[2] for path in (ROOT / 'configs').glob('lra_text_*.py')}
    printed = {name: accuracies(name) for name in variants}
    count = COUNT_WORDS[len([name for name, values in printed.items() if values])]
    text = words('docs/paper.md')
    assert f'{count} rows of Table 4' in text
    assert f"{count} of Table 4's" in words('docs/lra.md')
    averages = [f'{mean(printed[f"pola_a{alpha}"]):.2f}' for alpha in (3, 5, 7)]
    softmax = mean(printed['softmax'])
    assert f'= 3, 5, 7: {", ".join(averages)}; softmax {softmax:.2f})' in text


def gains(column, part):
    """How much Pola-Swin and Pola-PVT gain over their baselines, in tenths, ascending.

    Args:
        column: of docs/published.csv.
        part: number of the figure in a cell, 0 or 1.
    """
    models = {(row['model'], row['recipe']): row for row in published()}
    found = []
    for (name, recipe), row in models.items():
        baseline = models.get((name.removeprefix('Pola-'), recipe))
        if name.startswith('Pola-') and row[column] and baseline[column]:
            ours = row[column].split(' / ')[part].removesuffix(' (FPN)')
            theirs = baseline[column].split(' / ')[part].removesuffix(' (FPN)')
            found.append(round(10 * (float(ours) - float(theirs))))
    return sorted(found)


@pytest.mark.parametrize(
    ('column', 'part', 'sentence'),
    [
        ('top-1', 0, '{} to {} points of top-1'),
        ('AP', 0, '{} to {} of box AP'),
        ('AP', 1, '{} to {} of mask AP'),
        ('mIoU', 0, '{} to {} of mIoU'),
    ],
)
def test_gains_beside_the_claim_of_the_abstract(column, part, sentence):
    found = gains(column, part)
    assert sentence.format(found[0] / 10, found[-1] / 10) in words('docs/paper.md')


def test_known_networks():
    networks = {name.removeprefix('Pola') for name, _ in NAMED.values()} - {'FormerPP'}
    sentence = r'attention inside (\w+) known networks: (\w+), (\w+), (\w+) and (\w+)\.'
    count, *named = re.search(sentence, words('docs/choose.md')).groups()
    assert set(named) == networks
    assert count == COUNT_WORDS[len(networks)]


def test_speed_beside_the_claims_of_the_paper():
    measured = rows('backbones')
    pvt = measured['PolaPVT tiny, 224x224, batch 8']['mmdet, inference']
    swin = measured['PolaSwin tiny, 224x224, batch 8']
    span = sorted([swin['mmdet, inference'], swin['timm Swin-T, inference']])
    text = words('docs/paper.md')
    assert f'Pola-PVT-T has {pvt:.2f} times the speed of PVT-T' in text
    assert f'Pola-Swin-T {span[0]:.2f} to {span[1]:.2f} times the speed of Swin-T' in text


def test_speed_over_image_sizes():
    measured = rows('image_size')
    text = words('docs/choose.md')
    swin = 'Swin-T over Pola-Swin-T, time'
    inference = [row[f'{swin}, inference'] for row in measured.values()]
    steps = [row[f'{swin}, training step'] for row in measured.values()]
    steps.remove('absent')  # at 4,096 x 4,096
    assert f'has {min(inference):.2f} to {max(inference):.2f} times the speed of' in text
    assert f'training step {min(steps):.2f} to {max(steps):.2f} times' in text
    at_800 = measured['800x1344']
    step = at_800['PVT-T over Pola-PVT-T, time, training step']
    assert f'{at_800["PVT-T over Pola-PVT-T, time, inference"]:.1f} times its speed at 800' in text
    assert f'a training step {step:.1f} times' in text


def test_a_caption_names_every_line_of_the_figure():
    """Of image_size.png, which benchmarks/report.py draws."""
    from benchmarks.report import BACKBONES

    caption = words('docs/choose.md').partition('image_size.png')[2][:1500]
    for name in BACKBONES:
        assert name in caption, name


def test_errors_on_the_first_page_are_those_of_the_comparison():
    table = re.findall(
        r'^\| (Pola.+?) \| ([\d.e-]+) \|', (ROOT / 'docs/paper.md').read_text(), re.M
    )
    errors = {'PolaFormer++': 0.0, 'others': 0.0}
    for name, logits in table:
        family = 'PolaFormer++' if name.startswith('PolaFormer++, b0') else 'others'
        errors[family] = max(errors[family], float(logits))
    printed = f'{errors["others"]:.0e}; PolaFormer++: {errors["PolaFormer++"]:.0e}'
    assert f'(relative error of logits: {printed})'.replace('e-0', 'e-') in words('README.md')
