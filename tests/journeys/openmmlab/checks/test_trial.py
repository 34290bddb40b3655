"""Two images of validation before the first step: what they find, and that they change nothing."""

import json
import random
import uuid
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.registry import METRICS
from torch import nn

from mmpola.openmmlab.checks.trial import without_traces, write_to
from tests.helpers.processes import run_script
from tests.helpers.training import assert_same, saved, small_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs')]

EACH_EPOCH = (
    'train_cfg.max_epochs=2',
    'train_cfg.val_interval=1',
    'default_hooks.checkpoint.interval=1',
    'default_hooks.checkpoint.max_keep_ckpts=3',
)
EACH_STEP = (
    'train_cfg.max_iters=2',
    'train_cfg.val_interval=1',
    'default_hooks.checkpoint.interval=1',
)

NOT_LOADED = """
keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(96, 80), keep_ratio=True),
    dict(type='PackDetInputs', meta_keys=keys),
]
val_dataloader = dict(dataset=dict(pipeline=pipeline))
val_evaluator = dict(_delete_=True, type='VOCMetric')
"""
"""A pipeline that loads no annotations is enough for CocoMetric, which reads the file."""

CONCATENATED = """
one = dict(**_base_.val_dataloader.dataset)
data_root = one['data_root']
one['filter_cfg'] = None
both = dict(type='ConcatDataset', datasets=[one, one])
val_dataloader = dict(dataset=dict(_delete_=True, **both))
metric = dict(type='CocoMetric', ann_file=data_root + 'annotations/instances_val2017.json')
val_evaluator = dict(
    _delete_=True,
    type='MultiDatasetsEvaluator',
    metrics=[metric, metric],
    dataset_prefixes=['north', 'south'],
)
"""


@pytest.fixture
def tiny_classifier(colours, tmp_path):
    """A Pola-Swin of one block per stage on three class folders, with mixup and drop path."""
    path = tmp_path / 'tiny_classifier.py'
    cfg = small_config(colours, tmp_path / 'unused', epochs=2)
    cfg.log_level = 'INFO'
    cfg.dump(path)
    return path


def train(config, work, *options, arguments=()):
    """Train; return the exit status."""
    command = (config, '--work-dir', work, *arguments)
    if options:
        command += ('--cfg-options', *options)
    return run_script('train', *command)


def changed(config, text):
    """Return a config that inherits from `config`, with other settings."""
    path = config.with_name(f'{uuid.uuid4().hex}.py')
    path.write_text(f'_base_ = {str(config)!r}\n{text}\n')
    return path


def scalars(work):
    """Return the lines of the newest scalars.json, without times."""
    path = max(work.glob('*/vis_data/scalars.json'), key=lambda path: path.stat().st_mtime)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if 'time' not in k} for line in lines]


def refusal(config, work, capsys, *options):
    """Train, which must be refused before the first step; return the line."""
    assert train(config, work, *options) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith('error: ')]
    assert len(lines) == 1 and 'Traceback' not in error
    assert not list(work.glob('*.pth'))
    return lines[0].removeprefix('error: ')


@pytest.mark.parametrize(
    ('fixture', 'options', 'last'),
    [
        ('tiny_config', EACH_EPOCH, 'epoch_2.pth'),
        ('tiny_segmentation', EACH_STEP, 'iter_2.pth'),
        ('tiny_classifier', EACH_EPOCH, 'epoch_2.pth'),
    ],
)
def test_a_run_ends_with_the_same_bits(fixture, options, last, request, tmp_path, capsys):
    """A detector also when it is resumed."""
    config = request.getfixturevalue(fixture)
    config = changed(config, "custom_hooks = [dict(type='EMAHook')]\nrandomness = dict(seed=5)")
    none = ('--skip-checks', 'trial')
    assert train(config, tmp_path / 'with', *options) == 0
    assert 'trial        2 images of val_dataloader' in capsys.readouterr().out
    assert train(config, tmp_path / 'without', *options, arguments=none) == 0
    assert 'trial  ' not in capsys.readouterr().out
    one, other = (tmp_path / name for name in ('with', 'without'))
    assert_same(saved(one / last), saved(other / last))
    assert scalars(one) == scalars(other)
    files = [
        sorted(path.name for path in work.rglob('*') if not path.name.startswith('20'))
        for work in (one, other)
    ]
    assert files[0] == files[1]
    if fixture != 'tiny_config':
        return
    before = last.replace('2', '1')
    resumed = ('--resume', other / before, '--overwrite')
    assert train(config, other, *options, arguments=resumed) == 0
    assert 'trial        2 images of val_dataloader' in capsys.readouterr().out
    assert_same(saved(one / last), saved(other / last))


def test_mmengines_own_loop_draws_the_same_numbers(tiny_config, tmp_path):
    """It seeds no step."""
    config = changed(
        tiny_config,
        "checkpoint = dict(type='mmpola.AtomicCheckpointHook')\n"
        'default_hooks = dict(_delete_=True, checkpoint=checkpoint)\n'
        "train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=1)\n",
    )
    assert train(config, tmp_path / 'with') == 0
    assert train(config, tmp_path / 'without', arguments=('--skip-checks', 'trial')) == 0
    one, other = (saved(tmp_path / name / 'epoch_1.pth') for name in ('with', 'without'))
    assert_same(one, other)


def test_what_a_validation_changes_is_restored():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('calls', torch.zeros(1))
            self.register_buffer('lost', torch.ones(1))
            self.norm = nn.BatchNorm1d(2)

    model = Counting().train()
    model.norm.eval()  # as a frozen stage
    hub = MessageHub('of a trial')
    hub.update_scalar('train/loss', 1.0)
    hub.update_info('iter', 4)
    logger = SimpleNamespace(disabled=False)
    metric = SimpleNamespace(img_ids=None, results=[])
    loop = SimpleNamespace(dataloader='all', evaluator=SimpleNamespace(metrics=[metric]))
    run = SimpleNamespace(message_hub=hub, logger=logger, model=model, _hooks=['one'])
    logged = []
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    with suppress(ValueError), without_traces(run, loop):
        model.train()
        model.calls += 1
        model.lost = torch.full((1,), 7.0)
        model.register_buffer('new', torch.zeros(1))
        model.norm(torch.randn(4, 2))
        hub.update_scalar('train/loss', 9.0)
        hub.update_info('iter', 9)
        hub.update_info('new', 1)
        metric.img_ids = [1, 2]
        metric.new = True
        loop.dataloader = 'two'
        run._hooks = []
        random.random()
        np.random.rand()
        logged.append(logger.disabled)
        raise ValueError('of an evaluator')
    assert logged == [True] and not logger.disabled
    assert model.training and not model.norm.training
    assert sorted(name for name, _ in model.named_buffers(recurse=False)) == ['calls', 'lost']
    assert model.calls.item() == 0 and model.lost.item() == 1
    assert model.norm.num_batches_tracked == 0
    assert hub.get_scalar('train/loss').data[0].tolist() == [1.0]
    assert hub.runtime_info == {'iter': 4}
    assert vars(metric) == {'img_ids': None, 'results': []}
    assert loop.dataloader == 'all' and run._hooks == ['one']
    drawn = (torch.rand(1).item(), random.random(), np.random.rand())
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    assert drawn == (torch.rand(1).item(), random.random(), np.random.rand())


@METRICS.register_module()
class AsksForMemory:
    """A metric that finds no memory."""

    def __init__(self):
        self.results = []

    def process(self, data_batch, data_samples):
        raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB\nGPU 0 …')

    def evaluate(self, size):
        return {}


NO_BOX = 'model = dict(test_cfg=dict(rcnn=dict(score_thr=0.9)))'
ONE_STEP = ('train_cfg.max_epochs=1', 'train_dataloader.dataset.indices=2')
EVALUATED = (*ONE_STEP, 'train_cfg.val_interval=1')


NOT_CHECKED = ('samples-unreadable', 'first-sample', 'image-size', 'channels', 'input-values')


@pytest.mark.parametrize(
    ('fixture', 'text', 'key', 'error'),
    [
        pytest.param(
            'tiny_config',
            NOT_LOADED,
            'val_evaluator',
            "KeyError: 'labels'",
            id='annotations-not-loaded',
        ),
        pytest.param(
            'tiny_config',
            "model = dict(roi_head=dict(mask_head=None))\nval_evaluator = dict(metric='segm')",
            'val_evaluator',
            "KeyError: 'segm is not in results'",
            id='masks-of-a-model-of-boxes',
        ),
        pytest.param(
            'tiny_segmentation',
            "model = dict(test_cfg=dict(mode='slide', crop_size=(64, 64)))",
            'model',
            "AttributeError: 'ConfigDict' object has no attribute 'stride'",
            id='windows-without-a-stride',
        ),
        pytest.param(
            'tiny_config',
            "val_dataloader = dict(dataset=dict(pipeline=[dict(type='LoadProposals')]))\n"
            f'data_checks = dict(skip={NOT_CHECKED})',
            'val_dataloader.dataset',
            "KeyError: 'proposals'",
            id='images-that-are-not-loaded',
        ),
        pytest.param(
            'tiny_config',
            "val_evaluator = dict(_delete_=True, type='AsksForMemory')",
            'val_evaluator',
            'OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB',
            id='a-lack-of-memory',
        ),
    ],
)
def test_what_would_end_a_run_after_an_epoch_ends_it_before(
    fixture, text, key, error, request, tmp_path, capsys
):
    config = request.getfixturevalue(fixture)
    config = changed(config, text)
    line = refusal(config, tmp_path / 'work', capsys)
    assert line.startswith(f'{key}: expected no error for 2 images of val_dataloader, got {error}')
    assert line.endswith('; the traceback is in the log file [trial]')
    log = next((tmp_path / 'work').glob('*/*.log')).read_text()
    assert 'Traceback (most recent call last):' in log


@pytest.mark.parametrize(
    ('text', 'start'),
    [
        (
            "default_hooks = dict(checkpoint=dict(save_best=['coco/bbox_mAP_50', 'bbox_mAP']))",
            'default_hooks.checkpoint.save_best: ',
        ),
        (
            "custom_hooks = [dict(type='EMAHook'), "
            "dict(type='EarlyStoppingHook', monitor='bbox_mAP')]",
            'custom_hooks.1.monitor: ',
        ),
        (
            "param_scheduler = [dict(type='ReduceOnPlateauLR', monitor='bbox_mAP', "
            "rule='greater')]",
            'param_scheduler.0.monitor: ',
        ),
    ],
)
def test_a_metric_that_does_not_exist_is_named(text, start, tiny_config, tmp_path, capsys):
    """The nearest is suggested; thresholds that no untrained box passes are no obstacle."""
    config = changed(tiny_config, f'{text}\n{NO_BOX}')
    line = refusal(config, tmp_path / 'work', capsys)
    assert line.startswith(f'{start}expected a metric of val_evaluator (coco/bbox_mAP, ')
    assert line.endswith('got bbox_mAP; did you mean coco/bbox_mAP? [metric-names]')


def test_evaluators_of_several_data_sets_get_images_of_each(tiny_config, tmp_path, capsys):
    config = changed(tiny_config, CONCATENATED)
    best = 'default_hooks.checkpoint.save_best=coco/bbox_mAP'
    line = refusal(config, tmp_path / 'refused', capsys, best)
    assert 'did you mean north/coco/bbox_mAP?' in line
    best = 'default_hooks.checkpoint.save_best=south/coco/bbox_mAP'
    assert train(config, tmp_path / 'work', *EVALUATED, best) == 0


@pytest.mark.parametrize(
    ('fixture', 'argument'),
    [('tiny_config', 'outfile_prefix'), ('tiny_segmentation', 'output_dir')],
)
def test_evaluators_that_write_leave_no_file(fixture, argument, request, tmp_path, capsys):
    """They must write when the run validates, not before."""
    config = request.getfixturevalue(fixture)
    kept = tmp_path / 'kept'
    config = changed(config, f"val_evaluator = dict({argument}='{kept}/results')")
    config = changed(config, 'train_cfg = dict(val_interval=5, val_begin=5)')
    one_step = ('train_cfg.max_iters=1',)
    if fixture == 'tiny_config':
        one_step = ONE_STEP
    assert train(config, tmp_path / 'work', *one_step) == 0
    assert 'trial  ' in capsys.readouterr().out
    assert not [path for path in kept.rglob('*') if path.is_file()]


def test_a_test_begins_with_two_images(tiny_config, write_checkpoint, tmp_path, capsys):
    checkpoint = write_checkpoint(tiny_config, tmp_path / 'weights.pth')
    arguments = (checkpoint, '--work-dir', tmp_path / 'work')
    assert run_script('test', tiny_config, *arguments) == 0
    assert 'trial        2 images of test_dataloader' in capsys.readouterr().out
    broken = changed(tiny_config, "test_evaluator = dict(_delete_=True, type='AsksForMemory')")
    assert run_script('test', broken, *arguments) == 2
    assert 'error: test_evaluator: expected no error for 2 images' in capsys.readouterr().err


def test_panoptic_files_are_not_kept_and_the_metric_needs_no_other_image(tmp_path):
    """mmdet's CocoPanopticMetric compares the whole file unless it has a temporary folder."""
    metric = SimpleNamespace(
        outfile_prefix='kept/a', seg_out_dir='kept/a.panoptic', tmp_dir=None, format_only=False
    )
    write_to(str(tmp_path), metric)
    assert metric.tmp_dir == str(tmp_path)
    assert metric.outfile_prefix == f'{tmp_path}/a'
    assert metric.seg_out_dir == f'{tmp_path}/a.panoptic'
