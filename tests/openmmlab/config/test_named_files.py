"""The files that a config names: found, checked, and left out of a run that has its own weights."""

import pytest
from mmengine.config import Config

from mmpola.openmmlab.config.named_files import check_pretrained, named_files, remove_pretrained
from tests.helpers.refusals import refusal

NORMAL = {'type': 'Normal', 'std': 0.01}
NONE = {'type': 'Pretrained', 'checkpoint': 'none.pth'}


def test_pretrained_weights_are_removed_everywhere():
    heads = [{'conv': {'init_cfg': [dict(NONE)]}}, {'init_cfg': NORMAL}]
    cfg = Config({'model': {'init_cfg': dict(NONE), 'heads': heads}})
    remove_pretrained(cfg.model)
    assert cfg.model.to_dict() == {
        'init_cfg': None,
        'heads': [{'conv': {'init_cfg': None}}, {'init_cfg': NORMAL}],
    }


@pytest.mark.parametrize(
    ('teacher', 'key'),
    [
        ({'init_cfg': NONE}, 'teacher.init_cfg.checkpoint'),
        (
            {'backbone': {'init_cfg': [NORMAL, NONE]}},
            'teacher.backbone.init_cfg.checkpoint',
        ),
        ({'file': 'none.pth'}, 'teacher.file'),
        ({'checkpoint_path': 'none.pth'}, 'teacher.checkpoint_path'),
    ],
)
def test_the_file_of_a_teacher_is_needed_by_a_resumed_run_too(teacher, key):
    """Its weights are in no checkpoint."""
    model = {'teacher': teacher, 'init_cfg': {'type': 'Pretrained', 'checkpoint': 'gone.pth'}}
    remove_pretrained(model)
    assert model == {'teacher': teacher, 'init_cfg': None}
    message = refusal(check_pretrained, model, download=False)
    assert message.startswith('none.pth: no such checkpoint file')
    assert message.endswith(
        f'(model.{key}); train without it with --cfg-options model.teacher=None '
        'model.distillation=None'
    )


def test_files_that_a_config_names_anywhere(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    names = ['epoch_1.pth', 'epoch_2.pth', 'epoch_3.pth']
    for name in names:
        (tmp_path / name).touch()
    paths = [str(tmp_path / name) for name in names]
    config = {
        'load_from': paths[0],
        'custom_hooks': [{'sources': ['none.pth', ('~/epoch_2.pth',)]}],
        'model': {'teacher': {'checkpoint_path': tmp_path / 'epoch_3.pth'}, 'number': 3},
        'work_dir': str(tmp_path),
    }
    assert named_files(config) == paths
