"""Training, killing, resuming, distributing, evaluating and drawing through the scripts."""

import json
import re
import signal

import pytest
import torch

from mmpola.backbones import PolaSwin
from mmpola.checkpoint.load import load_weights

pytestmark = pytest.mark.slow

STEPS = 18


def read(path):
    return torch.load(path, map_location='cpu', weights_only=False)


def losses(output):
    """(epoch, step) -> loss of the log's training lines."""
    lines = re.findall(r'Epoch\(train\)\s+\[(\d+)\]\[\s*(\d+)/\d+\].*? loss: ([\d.]+)', output)
    return {(int(epoch), int(step)): float(loss) for epoch, step, loss in lines}


def test_a_killed_run_resumes_and_its_checkpoint_evaluates(tiny_config, run_tool, start_tool, tmp_path):
    work = tmp_path / 'work'
    process = start_tool('train.py', tiny_config, '--work-dir', work)
    for line in process.stdout:
        if re.search(r'Epoch\(train\)\s+\[2\]\[3/6\]', line):
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait() == -signal.SIGKILL
    assert (work / 'last_checkpoint').read_text().endswith('epoch_1.pth')

    resumed = run_tool('train.py', tiny_config, '--work-dir', work, '--resume').stdout
    assert 'resumed epoch: 1, iter: 6' in resumed
    assert min(losses(resumed)) == (2, 1)

    whole = run_tool('train.py', tiny_config, '--work-dir', tmp_path / 'whole').stdout
    last, expected = read(work / 'epoch_3.pth'), read(tmp_path / 'whole' / 'epoch_3.pth')
    assert last['meta']['iter'] == expected['meta']['iter'] == STEPS
    assert {state['step'].item() for state in last['optimizer']['state'].values()} == {STEPS}
    assert last['param_schedulers'] == expected['param_schedulers']
    assert last['optimizer']['param_groups'][0]['lr'] == expected['optimizer']['param_groups'][0]['lr']
    assert len(losses(whole)) == STEPS

    pictures = tmp_path / 'pictures'
    output = run_tool('test.py', tiny_config, work / 'epoch_3.pth', '--show-dir', pictures, '--work-dir', work).stdout
    assert 'coco/segm_mAP_50' in output
    assert len(list(pictures.glob('*.jpg'))) == 4

    backbone = PolaSwin(
        {'embed_dims': 8, 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 4, 4)}, pretrain_img_size=(160, 192)
    )
    report = load_weights(backbone, work / 'epoch_3.pth')
    assert (report.container, report.new) == ('state_dict', [])
    assert len(report.loaded) == len(backbone.state_dict())


RECORDER = """
import json
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class RankRecorder(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        weights = sum(p.detach().double().abs().sum().item() for p in runner.model.parameters())
        with open(f'{runner.work_dir}/rank{runner.rank}.jsonl', 'a') as file:
            file.write(json.dumps({'loss': outputs['loss'].item(), 'weights': weights}) + '\\n')
"""

SAME_IMAGE = """
_base_ = {base!r}
custom_imports = dict(imports=['rank_recorder'])
custom_hooks = [dict(type='RankRecorder')]
one_image = _base_.train_dataloader.dataset
one_image['indices'] = 1
train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=8, dataset=one_image))
train_cfg = dict(type='EpochBasedTrainLoop')  # ranks have the same random numbers
default_hooks = dict(_delete_=True)
"""


def test_both_ranks_see_the_same_loss_on_the_same_image(tiny_config, run_tool, tmp_path, monkeypatch):
    """With equal data and seeds, both ranks have equal losses, and equal weights after every step."""
    (tmp_path / 'rank_recorder.py').write_text(RECORDER)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    config = tmp_path / 'same_image.py'
    config.write_text(SAME_IMAGE.format(base=str(tiny_config)))
    work = tmp_path / 'work'
    run_tool('dist_train.sh', config, 2, '--work-dir', work, '--cfg-options', 'train_cfg.max_epochs=1')
    ranks = [[json.loads(line) for line in (work / f'rank{rank}.jsonl').read_text().splitlines()] for rank in (0, 1)]
    assert len(ranks[0]) == 2
    assert ranks[0] == ranks[1]


def test_two_processes_agree_and_write_the_same_checkpoint(tiny_config, run_tool, tmp_path):
    options = ['--cfg-options', 'train_cfg.max_epochs=1', 'train_cfg.val_interval=1', 'optim_wrapper.optimizer.lr=1e-4']
    output = run_tool('dist_train.sh', tiny_config, 2, '--work-dir', tmp_path / 'two', *options).stdout
    assert len(losses(output)) == 3  # 12 images, 2 processes of 2
    assert 'coco/bbox_mAP' in output
    run_tool('train.py', tiny_config, '--work-dir', tmp_path / 'one', *options)
    two, one = read(tmp_path / 'two' / 'epoch_1.pth'), read(tmp_path / 'one' / 'epoch_1.pth')
    assert two['state_dict'].keys() == one['state_dict'].keys()
    assert two['optimizer']['state'].keys() == one['optimizer']['state'].keys()
    evaluated = run_tool('dist_test.sh', tiny_config, tmp_path / 'two' / 'epoch_1.pth', 2, '--work-dir', tmp_path / 't')
    assert 'coco/bbox_mAP' in evaluated.stdout


def test_two_processes_train_a_segmenter_without_sync_bn(tiny_segmentation, run_tool, tmp_path):
    options = ['train_cfg.max_iters=4', 'train_cfg.val_interval=2', 'default_hooks.logger.interval=2']
    options += ['default_hooks.checkpoint.interval=2']
    output = run_tool('dist_train.sh', tiny_segmentation, 2, '--work-dir', tmp_path, '--cfg-options', *options).stdout
    assert 'no GPU: SyncBN, which needs CUDA, is replaced by BN; each process normalises its own images' in output
    assert len(re.findall(r'Iter\(val\) \[\d+/\d+\].*mIoU: ', output)) == 2
    tensors = read(tmp_path / 'iter_4.pth')['state_dict'].values()
    assert all(torch.isfinite(x).all() for x in tensors)


def test_a_corrupt_training_image_is_named(tiny_config, run_tool, shapes, tmp_path):
    copy = tmp_path / 'copy'
    (copy / 'coco').mkdir(parents=True)
    for name in ('annotations', 'val2017'):
        (copy / 'coco' / name).symlink_to(shapes / 'coco' / name)
    (copy / 'coco' / 'train2017').mkdir()
    for image in (shapes / 'coco' / 'train2017').iterdir():
        (copy / 'coco' / 'train2017' / image.name).write_bytes(image.read_bytes())
    broken = sorted((copy / 'coco' / 'train2017').iterdir())[5]
    broken.write_bytes(b'not an image')
    root = f'train_dataloader.dataset.data_root={copy}/coco/'
    result = run_tool('train.py', tiny_config, '--work-dir', tmp_path / 'work', '--cfg-options', root, check=False)
    assert result.returncode != 0
    assert f'failed to load image: {broken}' in result.stdout
