"""The tables of models: configs and pages agree, and the counts are right."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from mmengine.config import Config

from mmpola.messages import UsageError
from mmpola.openmmlab.export.flops import count_model
from mmpola.zoo import ARCHITECTURES
from tests.helpers import ROOT
from tools.dev import config_rows, model_table

COUNTS = model_table.read_counts()
MODELS = {model.config: model for model in model_table.read_models()}


def smallest():
    """Return the config with the fewest parameters of each data set: every task is counted."""
    found = {}
    for name in sorted(COUNTS, key=lambda name: -float(COUNTS[name].parameters)):
        found[MODELS[name].data] = MODELS[name]
    return found


SMALLEST = smallest()


def test_every_config_has_a_row():
    configs = {path.stem for path in (ROOT / 'configs').glob('*.py')}
    lra = {name for name in configs if name.startswith('lra_')} - {'lra_listops_small'}
    assert COUNTS.keys() == configs - lra


@pytest.mark.parametrize('model', SMALLEST.values(), ids=SMALLEST.keys())
def test_counts_of_a_task(model):
    """Counting a config again gives its row of the table."""
    assert model_table.count(model) == COUNTS[model.config]


def test_all_regions_and_every_cascade_stage_are_counted():
    """A cascade has two more mask heads, and box heads of four convolutions and one layer."""
    mask = 14 * 14 * (4 * 256 * 256 * 9 + 256 * 256 * 4) + 28 * 28 * 256 * 80
    outputs = 1024 * (81 + 320)
    two_layers = 256 * 49 * 1024 + 1024 * 1024 + outputs
    four_convolutions = 49 * 4 * 256 * 256 * 9 + 256 * 49 * 1024 + outputs
    by_hand = 1000 * (3 * four_convolutions - two_layers) + 100 * 2 * mask
    macs = {}
    for model in ('mask_rcnn', 'cascade_mask_rcnn'):
        cfg = Config.fromfile(ROOT / 'configs' / f'{model}_pola_swin_t_1x.py')
        _, macs[model] = count_model(cfg, (800, 1280))
    assert macs['cascade_mask_rcnn'] - macs['mask_rcnn'] == by_hand


def test_a_docstring_names_the_model_and_the_papers_figure():
    for model in MODELS.values():
        text = (ROOT / 'configs' / f'{model.config}.py').read_text()
        assert text.startswith(
            f'"""{model.model}, {model.backbone}, {model.data}, {model.schedule}.\n'
        )
        if model.printed != '-':
            assert f'{model.metric}: {model.paper} (' in text, model.config


def cells_of(table):
    """Return the heading and the rows of a Markdown table as lists of cells."""
    lines = [line for line in table.splitlines() if line.startswith('|')]
    cells = [line.strip('| ').split(' | ') for line in lines]
    return cells[0], cells[2:]


def test_a_row_has_the_entries_of_the_file_and_the_counts():
    model = replace(MODELS['imagenet_pola_swin_t'], ours='82.5', log='8 GPUs, log')
    counts = {model.config: model_table.Counts('28.0', '4.7', '224 x 224')}
    table = model_table.config_tables([model], counts)
    assert table.startswith('## ImageNet-1k\n\n')
    heading, rows = cells_of(table)
    columns = ['config', 'parameters (M)', 'MACs (G), 224 x 224', 'top-1, paper', 'top-1, ours']
    assert heading == columns
    link = f'[{model.config}](../configs/{model.config}.py)'
    name = f'{link}<br>{model.model}, {model.backbone}, {model.schedule}'
    assert rows == [[name, '28.0', '4.7', '82.6', '82.5 (8 GPUs, log)']]
    _, rows = cells_of(model_table.sequence_table([MODELS['lra_text_pola_a3']]))
    cell = '[73.06](../configs/lra_text_pola_a3.py)'
    assert rows == [['`pola_a3`: PolaFormer (alpha = 3)', cell]]


def test_results_of_the_paper_come_first():
    names = ('cascade_mask_rcnn_pola_swin_t_1x', 'retinanet_pola_pvt_t_1x')
    models = [MODELS[name] for name in names]
    _, rows = cells_of(model_table.config_table(models, COUNTS))
    assert [row[0].split(']')[0] for row in rows] == [f'[{name}' for name in reversed(names)]
    assert [row[-1] for row in rows] == ['39.5', '-']


def test_the_table_of_backbones():
    _, rows = cells_of(model_table.backbone_table())
    assert sum(len(row[1].split(', ')) for row in rows) == len(ARCHITECTURES)
    assert ['`mmpola.PolaSwin`', '`tiny`, `small`', '`[96, 192, 384, 768]`'] in rows
    assert ['`mmpola.PolaPVTv2`', '`b0`', '`[32, 64, 160, 256]`'] in rows
    assert ['`mmpola.PolaDeiT`', '`small`', '`[384]`'] in rows


@pytest.mark.parametrize(
    ('before', 'after', 'rule'),
    [
        ('imagenet_pola_swin_t,', 'other,', 'expected a row for each config, by name, got '),
        ('lra_text_pola_a3,', 'lra_text_pola_a5,', 'expected a row for each config, by name, got '),
        (',ImageNet-1k,', ',ImageNet,', 'expected data of imagenet_.* to be one of COCO, '),
    ],
)
def test_a_config_without_a_row_is_refused(before, after, rule, tmp_path, monkeypatch):
    other = tmp_path / 'published.csv'
    other.write_text(config_rows.ROWS.read_text().replace(before, after))
    monkeypatch.setattr(config_rows, 'ROWS', other)
    with pytest.raises(UsageError, match=rule):
        config_rows.read_models()


def test_a_table_is_written_between_its_markers():
    begin = model_table.BEGIN.format('models')
    end = model_table.END.format('models')
    page = f'# Title\n\n{begin}\n\nold\n\n{end}\n\nLast line.\n'
    assert model_table.with_table(page, 'models', 'new') == page.replace('old', 'new')
    with pytest.raises(UsageError, match='expected the lines'):
        model_table.with_table('# Title\n', 'models', 'new')


def test_check_changes_nothing(root, monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['model_table.py', '--check'])
    model_table.main()
    assert capsys.readouterr().out == 'nothing to change\n'
    page = root / 'docs' / 'configs.md'
    before = page.read_text()
    monkeypatch.setattr(model_table, 'config_tables', lambda *arguments: 'other')
    with pytest.raises(UsageError, match=r'out of date: docs/configs\.md; run python'):
        model_table.main()
    assert page.read_text() == before


def test_it_runs_as_a_script(root):
    """Where only the package is importable, as after the installation."""
    variables = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
    command = [sys.executable, 'tools/dev/model_table.py', '--help']
    subprocess.run(command, cwd=root, env=variables, capture_output=True, check=True)
