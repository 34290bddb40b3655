"""The list of models: configs, metafile and pages agree, and the counts are right."""

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


def test_a_row_has_the_words_of_the_docstring_and_the_counts(tmp_path):
    title = 'Classifier, Pola-Swin-T, ImageNet-1k, 300 epochs.'
    result = 'Expected top-1: 82.6 (paper, table 1); ours: 82.5 (8 GPUs, log).'
    model = counted(write(tmp_path, title, result))
    assert model.entry()['Results'][0]['Task'] == 'Image Classification'
    table = model_table.config_tables([model])
    assert table.startswith('## ImageNet-1k\n\n')
    _, rows = cells_of(table)
    name = '[some_model](../configs/some_model.py)<br>Classifier, Pola-Swin-T, 300 epochs'
    assert rows == [[name, 'top-1', '28.0', '4.7', '224 x 224', '82.6', '82.5 (8 GPUs, log)']]

    title = 'Sequence classifier, PolaFormer (alpha = 3), LRA Text, 50,000 steps.'
    result = 'Expected accuracy: 73.06 (paper, table 4); ours: not yet run.'
    path = write(tmp_path, title, result).rename(tmp_path / 'lra_text_pola_a3.py')
    _, rows = cells_of(model_table.sequence_table([counted(path)]))
    cell = '[73.06](../configs/lra_text_pola_a3.py)'
    assert rows == [['`pola_a3`: PolaFormer (alpha = 3)', cell]]


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


def test_an_incomplete_docstring_is_refused(tmp_path):
    config = write(tmp_path, 'Mask R-CNN on COCO.', f'{FIGURES}; ours: not yet run.')
    with pytest.raises(UsageError, match='MODEL, BACKBONE, DATA, SCHEDULE'):
        model_table.read_docstring(config)


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
    monkeypatch.setattr(model_table, 'config_tables', lambda models: 'other')
    with pytest.raises(UsageError, match=r'out of date: docs/configs\.md; run python'):
        model_table.main()
    assert page.read_text() == before
