"""A run with a teacher resumes exactly."""

import copy

import pytest
import torch

from mmpola.classification.image_classifier import ImageClassifier
from tests.classification.test_teacher import BACKBONE
from tests.helpers.training import Signal, assert_same, run, saved, small_config


@pytest.mark.slow
@pytest.mark.usefixtures('unformatted_configs')
def test_a_run_without_labels_resumes_with_the_same_bits(colours, tmp_path):
    """The teacher is built again when the run resumes, and draws no random number of the run."""
    torch.manual_seed(1)
    weights = ImageClassifier(copy.deepcopy(BACKBONE), 3).state_dict()
    torch.save({'state_dict': weights}, tmp_path / 'teacher.pth')
    init_cfg = {'type': 'Pretrained', 'checkpoint': str(tmp_path / 'teacher.pth')}
    teacher = {
        'type': 'mmpola.ImageClassifier',
        'backbone': BACKBONE,
        'num_classes': 3,
        'init_cfg': init_cfg,
        'image_size': 40,
    }
    options = {
        'model.teacher': teacher,
        'model.distillation': {'temperature': 2.0, 'weight': 1.0},
        'default_hooks.average': {'type': 'EMAHook', 'momentum': 0.1, 'update_buffers': True},
    }

    def config(name):
        cfg = small_config(colours, tmp_path / name, options=options)
        dataset = cfg.train_dataloader.dataset
        cfg.train_dataloader.dataset = {
            'type': 'mmpola.UnlabelledImages',
            'root': dataset.root,
            'training': True,
            'transform': dataset.transform,
        }
        return cfg

    run(config('whole'))
    with pytest.raises(SystemExit):
        run(config('resumed'), Signal(step=8))
    run(config('resumed'), resume=True)
    resumed = saved(tmp_path / 'resumed' / 'epoch_3.pth')
    assert_same(resumed, saved(tmp_path / 'whole' / 'epoch_3.pth'))
    assert not [name for name in resumed['state_dict'] if 'teacher' in name]
