"""A run with a teacher resumes exactly, keeps the teacher's file, and compares its classes."""

import copy

import pytest
import torch

from mmpola.pretraining.image_classifier import ImageClassifier
from tests.helpers.processes import run_script
from tests.helpers.training import Signal, assert_same, run, saved, small_config
from tests.pretraining.test_teacher import BACKBONE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('unformatted_configs')]


def write_teacher(path, classes=None):
    """Write random weights of a classifier of three classes, and return the config of a teacher."""
    torch.manual_seed(1)
    content = {'state_dict': ImageClassifier(copy.deepcopy(BACKBONE), 3).state_dict()}
    if classes:
        content['meta'] = {'dataset_meta': {'classes': classes}}
    path.parent.mkdir(exist_ok=True)
    torch.save(content, path)
    return {
        'type': 'mmpola.ImageClassifier',
        'backbone': BACKBONE,
        'num_classes': 3,
        'init_cfg': {'type': 'Pretrained', 'checkpoint': str(path)},
        'image_size': 40,
    }


def write_config(colours, tmp_path, teacher):
    """Write the config of a student as tmp_path/student.py, and return its path."""
    options = {'model.teacher': teacher, 'model.distillation': {'weight': 1.0}}
    path = tmp_path / 'student.py'
    small_config(colours, tmp_path / 'unused', options=options).dump(path)
    return path


def test_the_command_resumes_a_run_with_a_teacher(colours, tmp_path):
    """The teacher's weights are in no checkpoint of the run: its file is read again."""
    config = write_config(colours, tmp_path, write_teacher(tmp_path / 'teacher.pth'))
    whole = tmp_path / 'whole'
    resumed = tmp_path / 'resumed'
    one_epoch = ('--cfg-options', 'train_cfg.max_epochs=1')
    assert run_script('train', config, '--work-dir', whole) == 0
    assert run_script('train', config, '--work-dir', resumed, *one_epoch) == 0
    assert run_script('train', config, '--work-dir', resumed, '--resume') == 0
    assert_same(saved(resumed / 'epoch_3.pth'), saved(whole / 'epoch_3.pth'))


def test_a_run_with_a_teacher_is_not_resumed_without_its_file(colours, tmp_path, capsys):
    config = write_config(colours, tmp_path, write_teacher(tmp_path / 'teacher.pth'))
    one_epoch = ('--cfg-options', 'train_cfg.max_epochs=1')
    assert run_script('train', config, '--work-dir', tmp_path / 'w', *one_epoch) == 0
    (tmp_path / 'teacher.pth').unlink()
    capsys.readouterr()
    assert run_script('train', config, '--work-dir', tmp_path / 'w', '--resume') == 2
    error = capsys.readouterr().err
    assert 'teacher.pth: no such checkpoint' in error
    assert '(model.teacher.init_cfg.checkpoint); train without it' in error


@pytest.mark.parametrize('resumes', [False, True])
def test_a_run_that_overwrites_keeps_the_file_of_its_teacher(resumes, colours, tmp_path):
    """It lies in the work dir, and is called as a checkpoint of an earlier run would be."""
    work = tmp_path / 'work'
    config = write_config(colours, tmp_path, write_teacher(work / 'epoch_9.pth'))
    arguments = ['--work-dir', work, '--overwrite', '--cfg-options', 'train_cfg.max_epochs=1']
    assert run_script('train', config, *arguments) == 0
    assert (work / 'epoch_9.pth').is_file()
    if resumes:
        arguments = ['--work-dir', work, '--resume', work / 'epoch_1.pth', '--overwrite']
        assert run_script('train', config, *arguments) == 0
        assert (work / 'epoch_9.pth').is_file()


@pytest.mark.parametrize(
    ('classes', 'status'),
    [(('blue', 'green', 'red'), 0), (('red', 'green', 'blue'), 2), (('a', 'b', 'c'), 0)],
)
def test_classes_of_a_teacher_in_another_order(classes, status, colours, tmp_path, capsys):
    teacher = write_teacher(tmp_path / 'teacher.pth', classes)
    config = write_config(colours, tmp_path, teacher)
    one_epoch = ('--cfg-options', 'train_cfg.max_epochs=1')
    assert run_script('train', config, '--work-dir', tmp_path / 'w', *one_epoch) == status
    if status:
        error = capsys.readouterr().err
        assert f'expected the classes of {tmp_path}/teacher.pth in their order' in error
    assert (tmp_path / 'w' / 'epoch_1.pth').is_file() == (status == 0)


def test_a_teacher_that_cannot_teach_is_one_line(colours, tmp_path, capsys):
    teacher = write_teacher(tmp_path / 'teacher.pth')
    teacher['num_classes'] = 4
    config = write_config(colours, tmp_path, teacher)
    assert run_script('train', config, '--work-dir', tmp_path / 'w') == 2
    error = capsys.readouterr().err
    assert error.startswith('error: model.teacher: ')
    assert error.count('\n') == 1
    assert not list((tmp_path / 'w').glob('*.pth'))


def test_a_run_without_labels_resumes_with_the_same_bits(colours, tmp_path):
    """The teacher is built again when the run resumes, and draws no random number of the run."""
    teacher = write_teacher(tmp_path / 'teacher.pth')
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
