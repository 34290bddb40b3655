"""The list of models: configs, metafile and pages agree, and the counts are right."""

import re

import pytest
from mmengine.config import Config

from mmpola.apps.publish.flops import count_model
from mmpola.backbones import PolaSwin
from mmpola.classification.image_classifier import ImageClassifier
from mmpola.messages import UsageError
from mmpola.zoo import NAMED
from tools.dev import model_table

SMALLEST = {
    entry['Metadata']['Training Data']: entry['Name']
    for entry in sorted(
        model_table.read_metafile()['Models'], key=lambda entry: -entry['Metadata']['Parameters']
    )
}
"""Data set -> the config with the fewest parameters, so that every task is counted."""

BEGIN, END = model_table.BEGIN.format('models'), model_table.END.format('models')
PAGE = f'# Title\n\n{BEGIN}\n\nold\n\n{END}\n\nLast line.\n'


@pytest.fixture(scope='module')
def entries():
    """The entries of the metafile by name."""
    return {entry['Name']: entry for entry in model_table.read_metafile()['Models']}


@pytest.mark.parametrize('name', SMALLEST.values(), ids=SMALLEST.keys())
def test_counts_of_a_task(name, root, entries):
    """Counting a config again gives its entry in the metafile."""
    model = model_table.read_docstring(root / 'configs' / f'{name}.py')
    model_table.count(model)
    assert model.entry() == entries[name]


def test_all_regions_and_every_cascade_stage_are_counted(entries):
    """A cascade has two more mask heads, and box heads of four convolutions and one layer."""
    mask = 14 * 14 * (4 * 256 * 256 * 9 + 256 * 256 * 4) + 28 * 28 * 256 * 80
    outputs = 1024 * (81 + 320)
    two_layers = 256 * 49 * 1024 + 1024 * 1024 + outputs
    four_convolutions = 49 * 4 * 256 * 256 * 9 + 256 * 49 * 1024 + outputs
    by_hand = 1000 * (3 * four_convolutions - two_layers) + 100 * 2 * mask
    one = entries['mask_rcnn_pola_swin_t_1x']['Metadata']
    cascade = entries['cascade_mask_rcnn_pola_swin_t_1x']['Metadata']
    assert cascade['FLOPs'] - one['FLOPs'] == by_hand


ARCH = {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)}


def test_a_classifier_is_counted():
    backbone = {'type': 'mmpola.PolaSwin', 'arch': ARCH, 'pretrain_img_size': 64}
    cfg = {
        'default_scope': 'mmpola',
        'model': {'type': 'ImageClassifier', 'backbone': backbone, 'num_classes': 5},
    }
    alone = PolaSwin(ARCH, pretrain_img_size=64)
    in_backbone = sum(parameter.numel() for parameter in alone.parameters())
    unused_norms = 2 * (8 + 16 + 32)
    head = 64 * 5 + 5
    parameters, macs = count_model(Config(cfg), (64, 64))
    assert parameters == in_backbone - unused_norms + head
    wider = ImageClassifier(backbone, 9)
    assert sum(parameter.numel() for parameter in wider.parameters()) == parameters + 4 * 65
    cfg['model']['num_classes'] = 9
    assert count_model(Config(cfg), (64, 64))[1] - macs == 4 * 64


def write(folder, title, expected):
    config = folder / 'some_model.py'
    config.write_text(f'"""{title}\n\n    command\n\n{expected}\n"""\n')
    return config


TITLE = 'Mask R-CNN, Pola-Swin-T, COCO, 3x (36 epochs, crop).'
FIGURES = 'Expected box AP / mask AP: 47.0 / 42.3'


def test_what_a_docstring_states(tmp_path):
    config = write(tmp_path, TITLE, f'{FIGURES} (paper, table 2); ours: not yet run.')
    assert model_table.read_docstring(config).entry() == {
        'Name': 'some_model',
        'In Collection': '',
        'Config': 'configs/some_model.py',
        'Metadata': {
            'Model': 'Mask R-CNN',
            'Backbone': 'Pola-Swin-T',
            'Training Data': 'COCO',
            'Schedule': '3x (36 epochs, crop)',
        },
        'Results': [
            {
                'Task': task,
                'Dataset': 'COCO',
                'Metrics': {metric: 'not yet run'},
                'Paper Metrics': {metric: value},
                'Paper Source': 'paper, table 2',
            }
            for task, metric, value in (
                ('Object Detection', 'box AP', 47.0),
                ('Instance Segmentation', 'mask AP', 42.3),
            )
        ],
    }


def counted(config, size='224 x 224'):
    model = model_table.read_docstring(config)
    model.collection = 'PolaSwin'
    model.counts = {'Image Size': size, 'Parameters': 28e6, 'FLOPs': 4.68e9}
    return model


def cells_of(table):
    """Return the heading and the rows of a Markdown table as lists of cells."""
    lines = [line for line in table.splitlines() if line.startswith('|')]
    cells = [line.strip('| ').split(' | ') for line in lines]
    return cells[0], cells[2:]


def test_tables_of_classifiers(tmp_path):
    """Input sizes that differ get a column; our result keeps its source."""
    title = 'Classifier, Pola-Swin-T, ImageNet-1k, 300 epochs.'
    result = 'Expected top-1: 82.6 (paper, table 1); ours: 82.5 (8 GPUs, log).'
    config = write(tmp_path, title, result)
    model = counted(config)
    larger = counted(config, '384 x 384')
    assert model.entry()['Results'][0]['Task'] == 'Image Classification'
    name = '[some_model](../configs/some_model.py)<br>Classifier, Pola-Swin-T, 300 epochs'
    figures = ['28.0', '4.7', '82.6', '82.5 (8 GPUs, log)']

    table = model_table.tables([model])
    assert table.startswith('## ImageNet-1k\n\nMetric: top-1. MACs at 224 x 224.\n\n')
    heading, rows = cells_of(table)
    assert heading == ['config', 'parameters (M)', 'MACs (G)', 'paper', 'ours']
    assert rows == [[name, *figures]]

    heading, rows = cells_of(model_table.tables([model, larger]))
    assert heading == ['config', 'input', 'parameters (M)', 'MACs (G)', 'paper', 'ours']
    assert rows == [[name, '224 x 224', *figures], [name, '384 x 384', *figures]]


def test_what_is_not_trained_is_said_once(tmp_path):
    untrained = counted(write(tmp_path, TITLE, f'{FIGURES}; ours: not yet run.'))
    table = model_table.tables([untrained, untrained])
    assert table.count('None of these models has been trained here yet.') == 1
    assert 'not yet run' not in table
    heading, _ = cells_of(table)
    assert heading[-1] == 'paper'

    trained = counted(write(tmp_path, TITLE, f'{FIGURES}; ours: 47.1 / 42.4 (log).'))
    table = model_table.tables([untrained, trained])
    assert 'None of these' not in table
    heading, rows = cells_of(table)
    assert heading[-1] == 'ours'
    assert [row[-1] for row in rows] == ['not yet run', '47.1 / 42.4 (log)']


def test_metrics_that_differ_are_printed_in_their_rows(tmp_path):
    models = []
    for metric in ('top-1', 'mask AP50'):
        line = f'Expected {metric}: not in the paper; ours: 75.0 (log).'
        models.append(counted(write(tmp_path, TITLE, line)))
    table = model_table.tables(models)
    assert 'Metric:' not in table
    heading, rows = cells_of(table)
    column = heading.index('metric')
    assert [row[column] for row in rows] == ['top-1', 'mask AP50']
    assert [row[-1] for row in rows] == ['75.0 (log)', '75.0 (log)']


def test_the_table_of_backbones():
    lines = model_table.backbone_table().splitlines()
    assert len(lines) == 2 + len([name for name in NAMED if not name.endswith('_384')])
    cells = {line.split('`')[1]: line.split('`')[3::2] for line in lines[2:]}
    strides = '[4, 8, 16, 32]'
    swin = ['mmpola.PolaSwin', 'tiny', '[2, 2, 6, 2]', '[96, 192, 384, 768]', strides]
    pvt = ['mmpola.PolaPVTv2', 'b0', '[2, 2, 2, 2]', '[32, 64, 160, 256]', strides]
    assert cells['pola_swin_tiny'] == swin
    assert cells['pola_pvt_v2_b0'] == pvt
    assert cells['pola_deit_small'] == ['mmpola.PolaDeiT', 'small', '[12]', '[384]', '[16]']


@pytest.mark.parametrize(
    ('title', 'expected', 'named'),
    [
        (
            'Mask R-CNN on COCO.',
            f'{FIGURES}; ours: not yet run.',
            ('some_model.py', 'MODEL, BACKBONE, DATA, SCHEDULE', 'COCO'),
        ),
        (
            TITLE,
            'Expected F1: 5; ours: 6.',
            ('some_model', 'box AP, mask AP, mIoU, top-1, accuracy', "'F1'"),
        ),
    ],
)
def test_incomplete_docstrings_are_refused(title, expected, named, tmp_path):
    config = write(tmp_path, title, expected)
    with pytest.raises(UsageError) as raised:
        model_table.read_docstring(config).entry()
    for text in named:
        assert text in str(raised.value)


def test_out_of_date_files_are_named(tmp_path, monkeypatch, capsys):
    """--check changes nothing; without it, what is outside of the markers stays."""
    (tmp_path / 'configs').mkdir()
    page, metafile = tmp_path / 'models.md', tmp_path / 'configs' / 'metafile.yml'
    metafile.write_text('Collections:\n- Name: PolaSwin\n')
    page.write_text(PAGE)
    write(tmp_path / 'configs', TITLE, f'{FIGURES} (paper, table 2); ours: not yet run.')
    monkeypatch.setattr(model_table, 'ROOT', tmp_path)
    monkeypatch.setattr(
        model_table, 'pages_of', lambda models: {page: {'models': model_table.tables(models)}}
    )
    counts = counted(tmp_path / 'configs' / 'some_model.py').counts
    monkeypatch.setattr(model_table, 'count', lambda model: vars(model).update(counts=counts))

    def run(*arguments):
        monkeypatch.setattr('sys.argv', ['model_table.py', *arguments])
        model_table.main()
        return capsys.readouterr().out

    def refused():
        with pytest.raises(UsageError) as raised:
            run('--check')
        return str(raised.value)

    assert 'models.md, configs/metafile.yml' in refused()
    assert page.read_text() == PAGE
    assert run() == 'changed: models.md, configs/metafile.yml\n'
    assert page.read_text().startswith('# Title\n')
    assert page.read_text().endswith('\n\nLast line.\n')
    assert '47.0 / 42.3' in page.read_text()
    assert run('--check') == run() == 'nothing to change\n'
    write(
        tmp_path / 'configs', TITLE, f'{FIGURES} (paper, table 2); ours: 47.1 / 42.4 (8 GPUs, log).'
    )
    assert 'models.md, configs/metafile.yml' in refused()


def test_a_page_without_markers(tmp_path):
    page = tmp_path / 'models.md'
    page.write_text('# Title\n')
    with pytest.raises(
        UsageError, match=re.escape(f'{page}: expected the lines {BEGIN} and {END}')
    ):
        model_table.with_tables(page, {'models': ''})
