"""The list of models: configs, metafile and pages agree, and the counts are those of the built models."""

import re

import pytest
from mmengine.config import Config

from mmpola.apps.publish.flops import count_model
from mmpola.backbones import PolaSwin
from mmpola.backbones.zoo import NAMED
from mmpola.classification.image_classifier import ImageClassifier
from mmpola.messages import UsageError
from tools.dev import model_table

SMALLEST = {
    entry['Metadata']['Training Data']: entry['Name']
    for entry in sorted(
        model_table.read_metafile()['Models'], key=lambda entry: -entry['Metadata']['Parameters']
    )
}
"""Data set -> the config with the fewest parameters: a detector, a segmenter, classifiers of images and sequences."""

BEGIN, END = model_table.BEGIN.format('models'), model_table.END.format('models')
PAGE = f'# Title\n\n{BEGIN}\n\nold\n\n{END}\n\nLast line.\n'


@pytest.fixture(scope='module')
def entries():
    """The entries of the metafile by name."""
    return {entry['Name']: entry for entry in model_table.read_metafile()['Models']}


@pytest.mark.parametrize('name', SMALLEST.values(), ids=SMALLEST.keys())
def test_counts_of_a_task(name, root, entries):
    """Counting a config again gives its entry: collection, image size, parameters, multiply-accumulates."""
    model = model_table.stated(root / 'configs' / f'{name}.py')
    model_table.count(model)
    assert model.entry() == entries[name]


def test_all_regions_and_every_cascade_stage_are_counted(entries):
    """A cascade on the same backbone has two more mask heads, and other box heads (four convolutions, one layer)."""
    mask = 14 * 14 * (4 * 256 * 256 * 9 + 256 * 256 * 4) + 28 * 28 * 256 * 80
    outputs = 1024 * (81 + 320)
    two_layers = 256 * 49 * 1024 + 1024 * 1024 + outputs
    four_convolutions = 49 * 4 * 256 * 256 * 9 + 256 * 49 * 1024 + outputs
    by_hand = 1000 * (3 * four_convolutions - two_layers) + 100 * 2 * mask
    one, cascade = (
        entries[f'{name}_pola_swin_t_1x']['Metadata'] for name in ('mask_rcnn', 'cascade_mask_rcnn')
    )
    assert cascade['FLOPs'] - one['FLOPs'] == by_hand


ARCH = {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)}


def test_a_classifier_is_counted():
    backbone = {'type': 'mmpola.PolaSwin', 'arch': ARCH, 'pretrain_img_size': 64}
    cfg = {
        'default_scope': 'mmpola',
        'model': {'type': 'ImageClassifier', 'backbone': backbone, 'num_classes': 5},
    }
    alone, head = PolaSwin(ARCH, pretrain_img_size=64), 64 * 5 + 5
    parameters, macs = count_model(Config(cfg), (64, 64))
    assert (
        parameters
        == sum(parameter.numel() for parameter in alone.parameters()) - 2 * (8 + 16 + 32) + head
    )
    wider = ImageClassifier(backbone, 9)
    assert sum(parameter.numel() for parameter in wider.parameters()) == parameters + 4 * 65
    cfg['model']['num_classes'] = 9
    assert count_model(Config(cfg), (64, 64))[1] - macs == 4 * 64


def write(folder, title, expected):
    config = folder / 'some_model.py'
    config.write_text(f'"""{title}\n\n    command\n\n{expected}\n"""\n')
    return config


TITLE, FIGURES = (
    'Mask R-CNN, Pola-Swin-T, COCO, 3x (36 epochs, crop).',
    'Expected box AP / mask AP: 47.0 / 42.3',
)


def test_what_a_docstring_states(tmp_path):
    config = write(tmp_path, TITLE, f'{FIGURES} (paper, table 2); ours: not yet run.')
    assert model_table.stated(config).entry() == {
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
    model = model_table.stated(config)
    model.collection, model.counts = (
        'PolaSwin',
        {'Image Size': size, 'Parameters': 28e6, 'FLOPs': 4.68e9},
    )
    return model


def test_tables_of_classifiers(tmp_path):
    """Image sizes that differ are printed in their rows; our result keeps its source."""
    title = 'Classifier, Pola-Swin-T, ImageNet-1k, 300 epochs.'
    config = write(
        tmp_path, title, 'Expected top-1: 82.6 (paper, table 1); ours: 82.5 (8 GPUs, log).'
    )
    model, larger = counted(config), counted(config, '384 x 384')
    assert model.entry()['Results'][0]['Task'] == 'Image Classification'
    cells = (
        '[some_model](../configs/some_model.py)<br>Classifier, Pola-Swin-T, 300 epochs | 28.0 | 4.7'
    )
    heading = (
        '| config | parameters (M) | MACs (G) | paper | ours |\n| --- | --- | --- | --- | --- |\n'
    )
    figures = '82.6 | 82.5 (8 GPUs, log) |'
    assert model_table.tables([model]) == (
        f'## ImageNet-1k\n\nMetric: top-1. MACs at 224 x 224.\n\n{heading}| {cells} | {figures}'
    )
    rows = f'| {cells} at 224 x 224 | {figures}\n| {cells} at 384 x 384 | {figures}'
    assert (
        model_table.tables([model, larger])
        == f'## ImageNet-1k\n\nMetric: top-1.\n\n{heading}{rows}'
    )


def test_metrics_that_differ_are_printed_in_their_rows(tmp_path):
    lines = [
        f'Expected {metric}: not in the paper; ours: 75.0 (log).'
        for metric in ('top-1', 'mask AP50')
    ]
    table = model_table.tables([counted(write(tmp_path, TITLE, line)) for line in lines])
    assert 'Metric:' not in table
    assert [line.split(' | ')[-1] for line in table.splitlines()[-2:]] == [
        'top-1: 75.0 (log) |',
        'mask AP50: 75.0 (log) |',
    ]


def test_the_table_of_backbones():
    lines = model_table.backbone_table().splitlines()
    assert len(lines) == 2 + len([name for name in NAMED if not name.endswith('_384')])
    for row in (
        '| `pola_swin_tiny` | `mmpola.PolaSwin` | `tiny` | `[2, 2, 6, 2]` | `[96, 192, 384, 768]` | `[4, 8, 16, 32]` |',
        '| `pola_pvt_v2_b0` | `mmpola.PolaPVTv2` | `b0` | `[2, 2, 2, 2]` | `[32, 64, 160, 256]` | `[4, 8, 16, 32]` |',
        '| `pola_deit_small` | `mmpola.PolaDeiT` | `small` | `[12]` | `[384]` | `[16]` |',
    ):
        assert row in lines


@pytest.mark.parametrize(
    ('title', 'expected', 'message'),
    [
        (
            'Mask R-CNN on COCO.',
            f'{FIGURES}; ours: not yet run.',
            "some_model.py: expected a docstring that begins 'MODEL, BACKBONE, DATA, SCHEDULE.', with DATA one of COCO",
        ),
        (
            TITLE,
            'Expected F1: 5; ours: 6.',
            "some_model: expected a metric whose name contains one of box AP, mask AP, mIoU, top-1, accuracy, got 'F1'",
        ),
    ],
)
def test_incomplete_docstrings_are_refused(title, expected, message, tmp_path):
    config = write(tmp_path, title, expected)
    with pytest.raises(UsageError, match=re.escape(message)):
        model_table.stated(config).entry()


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

    assert refused().startswith(
        'the list of models is out of date: models.md, configs/metafile.yml; run '
    )
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
