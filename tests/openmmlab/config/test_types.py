"""A type of a config is a name or a class, and means the same."""

import pytest
from mmengine.config import Config
from mmengine.hooks import CheckpointHook, LoggerHook
from mmengine.registry import HOOKS, MODELS

from mmpola.openmmlab.config.build import replace_sync_bn
from mmpola.openmmlab.config.contents import IMAGENET, type_name
from mmpola.openmmlab.config.named_files import remove_pretrained
from mmpola.openmmlab.config.read import complete_types
from mmpola.openmmlab.config.types import library, scope, type_class
from mmpola.openmmlab.run.atomic_checkpoint import AtomicCheckpointHook
from mmpola.openmmlab.run.runner import Runner
from mmpola.pretraining.class_folders import ClassFolders
from mmpola.pretraining.data_config import name_imagenet_classes


@pytest.mark.parametrize(
    'kind', ['CheckpointHook', 'mmengine.CheckpointHook', CheckpointHook.__module__, CheckpointHook]
)
def test_mmengines_checkpoint_hook_is_replaced_however_it_is_named(kind):
    """torch.load refuses the files that it writes."""
    if kind == CheckpointHook.__module__:
        kind += '.CheckpointHook'
    assert type_class(kind, HOOKS) is CheckpointHook
    assert type_name(kind) == 'CheckpointHook'
    runner = Runner.__new__(Runner)
    runner._hooks = []
    runner.register_hook({'type': kind, 'interval': 3})
    runner.register_hook({'type': kind, 'backend_args': {'backend': 'petrel'}})
    runner.register_hook({'type': LoggerHook})
    kinds = {type(hook): hook for hook in runner.hooks}
    assert set(kinds) == {AtomicCheckpointHook, CheckpointHook, LoggerHook}
    assert kinds[AtomicCheckpointHook].interval == 3
    runner._hooks = []
    runner.register_default_hooks({})  # MMEngine's own, of a config that names none
    assert AtomicCheckpointHook in {type(hook) for hook in runner.hooks}


def test_an_unknown_type_has_no_class():
    assert type_class('Unknown', HOOKS) is None
    assert type_class('mmdet.Unknown', HOOKS) is None


def mmdet_class(name):
    return type_class(name, MODELS, 'mmdet')


def test_the_library_of_a_model_is_that_of_its_class():
    class Own(mmdet_class('RetinaNet')):
        pass

    class Other:
        pass

    MODELS.register_module(name='OwnRetinaNet', module=Own, force=True)
    for kind, default, expected in [
        ('mmdet.RetinaNet', None, 'mmdet'),
        ('RetinaNet', 'mmdet', 'mmdet'),
        ('OwnRetinaNet', None, 'mmdet'),
        (Own, None, 'mmdet'),
        ('mmseg.EncoderDecoder', 'mmdet', 'mmseg'),
        ('mmpola.ImageClassifier', None, 'mmpola'),
        (Other, None, 'mmengine'),
        ('Unknown', 'mmdet', 'mmdet'),
    ]:
        cfg = Config({'model': {'type': kind}, 'default_scope': default})
        assert library(cfg) == expected, kind


def test_a_config_with_classes_gets_the_scope_of_its_library():
    """mmdet's MaxIoUAssigner builds `BboxOverlaps2D` by this name."""
    cfg = Config({'model': {'type': mmdet_class('RetinaNet')}})
    complete_types(cfg)
    assert scope(cfg) == 'mmdet'
    cfg = Config({'model': {'type': 'mmdet.RetinaNet'}})  # as MMEngine reads it
    complete_types(cfg)
    assert scope(cfg) == 'mmengine'
    cfg.default_scope = None  # as mmdet's own configs of this style have it
    complete_types(cfg)
    assert scope(cfg) == 'mmdet'


def test_a_full_name_that_a_function_hides_is_found():
    name = 'mmdet.models.losses.smooth_l1_loss.L1Loss'
    cfg = Config({'model': {'type': 'mmdet.RetinaNet', 'loss': {'type': name}}})
    complete_types(cfg)
    assert cfg.model.loss.type is mmdet_class('L1Loss')
    assert cfg.to_dict()['model']['loss']['type'] == name


def test_names_and_classes_of_norms_are_replaced():
    from mmcv.ops import SyncBatchNorm as MMSyncBN
    from torch.nn import SyncBatchNorm

    for names, expected in [(('MMSyncBN',), 2), (('SyncBN', 'MMSyncBN'), 4)]:
        kinds = ['SyncBN', SyncBatchNorm, 'MMSyncBN', MMSyncBN]
        model = {'norms': [{'type': kind} for kind in kinds]}
        assert replace_sync_bn(model, names)
        assert [norm['type'] for norm in model['norms']].count('BN') == expected


def test_weights_are_found_by_mmengines_class():
    from mmengine.model import PretrainedInit

    kinds = ('Pretrained', PretrainedInit, 'mmengine.model.PretrainedInit')
    parts = [{'init_cfg': {'type': kind, 'checkpoint': 'a.pth'}} for kind in kinds]
    remove_pretrained({'parts': parts})
    assert [part['init_cfg'] for part in parts] == [None] * 3


@pytest.mark.parametrize(
    'kind',
    [ClassFolders, 'mmpola.ClassFolders', 'mmpola.pretraining.class_folders.ClassFolders'],
)
def test_a_classifiers_data_get_imagenets_classes_however_they_are_named(kind):
    dataset = {'type': kind, 'root': 'none'}
    cfg = Config({'model': {'num_classes': 1000}, 'test_dataloader': {'dataset': dataset}})
    name_imagenet_classes(cfg)
    assert cfg.test_dataloader.dataset.classes == IMAGENET
