"""The list of models: configs, metafile and pages agree, and the counts are those of the built models."""

import pytest

from mmpola.backbones.zoo import NAMED
from tests.helpers.refusals import refusal
from tools.dev import model_table

SMALLEST = {
    entry['Metadata']['Training Data']: entry['Name']
    for entry in sorted(model_table.read_metafile()['Models'], key=lambda entry: -entry['Metadata']['Parameters'])
}
"""Data set -> the config with the fewest parameters: a detector, a segmenter, classifiers of images and sequences."""

BEGIN, END = model_table.BEGIN.format('models'), model_table.END.format('models')
PAGE = f'# Title\n\n{BEGIN}\n\nold\n\n{END}\n\nLast line.\n'


@pytest.fixture(scope='module')
def entries():
    """The entries of the metafile by name."""
    return {entry['Name']: entry for entry in model_table.read_metafile()['Models']}


def config_paths(root):
    return sorted((root / 'configs').glob('*.py'))


@pytest.mark.parametrize('name', SMALLEST.values(), ids=SMALLEST.keys())
def test_counts_of_a_task(name, root, entries):
    """Counting a config again gives its entry: collection, image size, parameters, multiply-accumulates."""
    assert model_table.complete(model_table.stated(root / 'configs' / f'{name}.py')) == entries[name]


def test_all_regions_and_every_cascade_stage_are_counted(entries):
    """A cascade on the same backbone has two more box and mask heads; its box heads are class-agnostic."""
    mask = 14 * 14 * (4 * 256 * 256 * 9 + 256 * 256 * 4) + 28 * 28 * 256 * 80
    boxes = [256 * 49 * 1024 + 1024 * 1024 + 1024 * (81 + outputs) for outputs in (4, 320)]
    by_hand = 1000 * (3 * boxes[0] - boxes[1]) + 100 * 2 * mask
    one, cascade = (entries[f'{name}_pola_swin_t_1x']['Metadata'] for name in ('mask_rcnn', 'cascade_mask_rcnn'))
    assert cascade['FLOPs'] - one['FLOPs'] == by_hand


def write(folder, title, expected):
    config = folder / 'some_model.py'
    config.write_text(f'"""{title}\n\n    command\n\n{expected}\n"""\n')
    return config


TITLE, FIGURES = 'Mask R-CNN, Pola-Swin-T, COCO, 3x (36 epochs, crop).', 'Expected box AP / mask AP: 47.0 / 42.3'


def test_what_a_docstring_states(tmp_path):
    config = write(tmp_path, TITLE, f'{FIGURES} (paper, table 2); ours: not yet run.')
    assert model_table.stated(config) == {
        'Name': 'some_model',
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


COUNTED = {'In Collection': 'PolaSwin', 'Metadata': {'Image Size': '224 x 224', 'Parameters': 28e6, 'FLOPs': 4.68e9}}


def test_tables_of_classifiers(tmp_path):
    """Image sizes that differ are printed in their rows; our result keeps its source."""
    title = 'Classifier, Pola-Swin-T, ImageNet-1k, 300 epochs.'
    config = write(tmp_path, title, 'Expected top-1: 82.6 (paper, table 1); ours: 82.5 (8 GPUs, log).')
    entry = model_table._entry(model_table.stated(config), COUNTED)
    assert entry['Results'][0]['Task'] == 'Image Classification'
    larger = {**entry, 'Metadata': {**entry['Metadata'], 'Image Size': '384 x 384'}}
    cells = '[some_model](../configs/some_model.py)<br>Classifier, Pola-Swin-T, 300 epochs | 28.0 | 4.7'
    heading = '| config | parameters (M) | MACs (G) | paper | ours |\n| --- | --- | --- | --- | --- |\n'
    figures = '82.6 | 82.5 (8 GPUs, log) |'
    assert model_table.tables([entry]) == (
        f'## ImageNet-1k\n\nMetric: top-1. MACs at 224 x 224.\n\n{heading}| {cells} | {figures}'
    )
    rows = f'| {cells} at 224 x 224 | {figures}\n| {cells} at 384 x 384 | {figures}'
    assert model_table.tables([entry, larger]) == f'## ImageNet-1k\n\nMetric: top-1.\n\n{heading}{rows}'


def test_metrics_that_differ_are_printed_in_their_rows(tmp_path):
    entries = []
    for metric in ('top-1', 'mask AP50'):
        config = write(tmp_path, TITLE, f'Expected {metric}: not in the paper; ours: 75.0 (log).')
        entries.append(model_table._entry(model_table.stated(config), COUNTED))
    table = model_table.tables(entries)
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


def test_the_readmes_table(entries):
    lines = model_table.short_table(list(entries.values())).splitlines()
    assert len(lines) == 2 + len(model_table.README_MODELS)
    mask_rcnn = '[Mask R-CNN, Pola-Swin-T](configs/mask_rcnn_pola_swin_t_1x.py) | COCO, 1x | box AP / mask AP | 48.8 M'
    assert any(line.startswith(f'| {mask_rcnn} | 44.8 / 40.5 | ') for line in lines)


@pytest.mark.parametrize(
    ('title', 'expected', 'message'),
    [
        (
            'Mask R-CNN on COCO.',
            f'{FIGURES}; ours: not yet run.',
            "a docstring that begins 'MODEL, BACKBONE, DATA, SCHEDULE.', with DATA one of COCO, ADE20K, ImageNet-1k, ",
        ),
        (
            TITLE,
            'Expected F1: 5; ours: 6.',
            "a metric whose name contains one of box AP, mask AP, mIoU, top-1, accuracy, got 'F1'",
        ),
    ],
)
def test_incomplete_docstrings_are_refused(title, expected, message, tmp_path):
    config = write(tmp_path, title, expected)
    assert refusal(model_table.stated, config).startswith(f'{config}: expected {message}')


def test_out_of_date_files_are_named(tmp_path):
    page = tmp_path / 'models.md'
    page.write_text(PAGE)
    config = write(tmp_path, TITLE, f'{FIGURES} (paper, table 2); ours: not yet run.')
    entry = model_table._entry(model_table.stated(config), COUNTED)
    head = 'the list of models is out of date; run python tools/dev/model_table.py\n  '

    def problem(configs, entries):
        tables = {page: {'models': model_table.tables(entries)}}
        return refusal(model_table.check, configs, entries, tables).removeprefix(head)

    assert problem([config], [entry]) == ('models.md: the tables differ from configs/metafile.yml or the backbones')
    assert problem([], [entry]) == 'configs/some_model.py: no such config'
    assert problem([config], []) == 'configs/some_model.py: missing in configs/metafile.yml'
    table = model_table.tables([entry])
    page.write_text(model_table.with_tables(page, {'models': table}))
    model_table.check([config], [entry], {page: {'models': table}})
    assert page.read_text().startswith('# Title\n')
    assert page.read_text().endswith('\n\nLast line.\n')
    write(tmp_path, TITLE, f'{FIGURES} (paper, table 2); ours: 47.1 / 42.4 (8 GPUs, log).')
    assert problem([config], [entry]) == 'configs/some_model.py: its docstring and configs/metafile.yml differ'


def test_a_page_without_markers(tmp_path):
    page = tmp_path / 'models.md'
    page.write_text('# Title\n')
    message = refusal(model_table.with_tables, page, {'models': ''})
    assert message.startswith(f'{page}: expected the lines {BEGIN} and {END}')
