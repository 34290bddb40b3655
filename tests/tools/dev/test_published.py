"""docs/published.csv agrees with the networks, sentences and the plot agree with it."""

import re

import pytest
from matplotlib.figure import Figure
from mmengine.config import Config

from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.export.flops import count_model
from tools.dev import config_rows, published
from tools.dev.config_rows import ROOT

ROWS = {(row['model'], row['source']): row for row in published.published()}
FIRST = [row for row in published.published('README') if published.is_ours(row)]

KEY_TABLE = 'positional_encoding'
"""The last part of the names of the tables of key positions, which the paper does not count."""


def ids(rows):
    return [row['model'] for row in rows]


def test_accuracies_are_those_of_the_configs(tmp_path, monkeypatch):
    assert published.text_of_figures() == published.FIGURES.read_text()
    other = tmp_path / 'published.csv'
    text = config_rows.ROWS.read_text()
    for figure, changed in (('82.6', '12.6'), ('44.8 / 40.5', '14.8 / 10.5'), ('41.0', '11.0')):
        assert figure in text
        text = text.replace(figure, changed)
    other.write_text(text)
    monkeypatch.setattr(config_rows, 'ROWS', other)
    rows = {(row['model'], row['source']): row for row in published.published()}
    swin = rows['Pola-Swin-T', 'PolaFormer']
    assert (swin['top-1'], swin['AP'], swin['mIoU']) == ('12.6', '14.8 / 10.5', '45.8')
    assert rows['Pola-PVT-S', 'PolaFormer']['mIoU'] == '11.0 (FPN)'
    assert rows['Agent-Swin-T', 'Agent']['top-1'] == '82.6'
    assert rows['PolaFormer++ b2', 'PolaFormer++']['AP'] == ''


@pytest.mark.parametrize('row', FIRST, ids=ids(FIRST))
def test_costs_are_those_of_the_built_networks(row):
    """The authors cut decimals off, and count attention's multiply-accumulates in part."""
    name = published.config_name(row['model'])
    cfg = Config.fromfile(ROOT / 'configs' / f'imagenet_{name}.py')
    model = build_model(Config.fromfile(ROOT / 'configs' / f'imagenet_{name}.py'))
    all_parameters = 0
    without_tables = 0
    for key, parameter in model.named_parameters():
        all_parameters += parameter.numel()
        if not key.endswith(KEY_TABLE):
            without_tables += parameter.numel()
    possible = {all_parameters // 1_000_000, without_tables // 1_000_000}
    assert int(row['parameters']) in possible
    _, macs = count_model(cfg, (224, 224))
    assert 0.85 * macs < float(row['MACs']) * 1e9 < 1.01 * macs


def test_the_plot_shows_the_rows(tmp_path):
    drawn = set()

    def remember(figure, file, **kwargs):
        (axes,) = figure.axes
        for line in axes.lines:
            drawn.update(zip(*line.get_data(), strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, 'savefig', remember)
        published.draw(tmp_path / 'accuracy.png')
    rows = published.published('plot')
    assert drawn == {(float(row['MACs']), float(row['top-1'])) for row in rows}


def test_an_outdated_plot_is_noticed(tmp_path, monkeypatch):
    assert published.plot_is_current()
    other = tmp_path / 'published.csv'
    other.write_text(published.FIGURES.read_text().replace('82.6', '82.7'))
    monkeypatch.setattr(published, 'FIGURES', other)
    assert not published.plot_is_current()


def figure_of(model, source, column='AP'):
    """Return a figure, of 'box / mask AP' that of boxes."""
    return float(ROWS[model, source][column].split(' ')[0])


def test_what_the_page_says_of_the_rivals():
    """Differences in the text of docs/choose.md."""
    text = ' '.join((ROOT / 'docs' / 'choose.md').read_text().split())
    pola = figure_of('Pola-Swin-T', 'PolaFormer')
    both = (ROWS['Pola-Swin-T', 'PolaFormer'], ROWS['Agent-Swin-T', 'Agent'])
    box, mask = zip(*(row['AP'].split(' / ') for row in both), strict=True)
    segmented = [row['mIoU'] for row in both]
    pairs = [' and '.join(pair) for pair in (box, mask, segmented)]
    assert 'box AP {}, mask AP {}, mIoU {}'.format(*pairs) in text
    gain = pola - figure_of('Swin-T', 'Swin + its detectors')
    assert f'{gain:.1f} box AP above Swin-T' in text
    assert f'MLLA-T lies {figure_of("MLLA-T", "MLLA") - pola:.1f} higher' in text
    for model, source in (('VMamba-T', 'VMamba'), ('RAVLT-T', 'RALA')):
        gain = figure_of(model, source) - figure_of('Swin-T', 'VMamba')
        assert f'gain {gain:.1f} over Swin-T' in text, model
    care = ROWS['CARE-S1', 'CARE']
    ours = ROWS['PolaFormer++ b1', 'PolaFormer++']
    gain = float(care['top-1']) - float(ours['top-1'])
    assert care['MACs'] == ours['MACs']
    assert f'CARE-S1 is {gain:.1f} better on ImageNet than PolaFormer++ b1' in text
    assert f'publishes {care["top-1"]} at as many multiply-accumulates' in text
    spans = []
    for column in ('AP', 'mIoU'):
        gains = []
        for size in 'TS':
            agent = figure_of(f'Agent-PVT-{size}', 'Agent', column)
            gains.append(agent - figure_of(f'Pola-PVT-{size}', 'PolaFormer', column))
        spans.append(f'{min(gains):.1f} to {max(gains):.1f}')
    boxes, segments = spans
    assert f'Agent-PVT is {boxes} box AP above Pola-PVT, and {segments} mIoU' in text


def test_linear_stages_are_those_that_the_page_names():
    """Which stages of the built networks have linear attention, and which have softmax."""
    from mmpola.backbones import named_backbone
    from mmpola.layers import LinearAttention

    text = (ROOT / 'docs' / 'choose.md').read_text()
    table = dict(re.findall(r'^\| (`Pola.+?`) \| (.+?) \|', text, re.MULTILINE))
    names = {
        'PolaPVT': 'pola_pvt_tiny',
        'PolaPVTv2': 'pola_pvt_v2_b0',
        'PolaDeiT': 'pola_deit_tiny',
    }
    names |= {'PolaSwin': 'pola_swin_tiny', 'PolaFormerPP': 'polaformer_pp_b0'}
    said = {}
    for families, stages in table.items():
        for family in re.findall(r'`(\w+)`', families):
            if family in names:
                said[family] = stages
    assert said.keys() == names.keys()
    for family, name in names.items():
        cls, arguments = named_backbone(name)
        backbone = cls(**arguments)
        linear = []
        for number, stage in enumerate(backbone.stages, 1):
            kinds = {isinstance(block.attn, LinearAttention) for block in stage.blocks}
            (is_linear,) = kinds
            if is_linear:
                linear.append(number)
        if len(linear) == len(backbone.stages):
            assert said[family] == 'every stage'
        else:
            assert said[family] == f'stages {" and ".join(map(str, linear))}'
