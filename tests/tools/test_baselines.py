"""A backbone of mmdet, whose constructor reads values, trains beside ours by the same commands."""

import pytest

from mmpola.checkpoint.safe_load import read_checkpoint
from tests.helpers.processes import run_script

pytestmark = pytest.mark.usefixtures('unformatted_configs')

SWIN = {
    'type': 'SwinTransformer',
    'embed_dims': 8,
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 2, 4, 4),
    'window_size': 4,
}


@pytest.mark.slow
def test_train_resume_test_and_predict(tiny_config, shapes, tmp_path):
    with tiny_config.open('a') as config:
        config.write(
            f'model["backbone"] = dict({SWIN!r}, _delete_=True)\n'
            'model["neck"]["in_channels"] = [8, 16, 32, 64]\n'
            'train_cfg = dict(max_epochs=1, val_interval=1)\n'
            'train_dataloader["dataset"]["indices"] = 2\n'
        )
    work = tmp_path / 'work'
    out = tmp_path / 'out'
    assert run_script('train', tiny_config, '--work-dir', work) == 0
    longer = ('--cfg-options', 'train_cfg.max_epochs=2')
    assert run_script('train', tiny_config, '--work-dir', work, '--resume', *longer) == 0
    checkpoint = work / 'epoch_2.pth'
    assert read_checkpoint(checkpoint)['meta']['iter'] == 2
    assert run_script('test', tiny_config, checkpoint, '--work-dir', tmp_path / 'tested') == 0
    images = shapes / 'coco' / 'val2017'
    assert run_script('predict', tiny_config, checkpoint, images, '--out', out) == 0
    assert len(list((out / 'preds').iterdir())) == 4
