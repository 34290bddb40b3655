"""A backbone of mmdet trains beside ours by the same command."""

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
def test_a_backbone_of_mmdet_trains(tiny_config, tmp_path):
    with tiny_config.open('a') as config:
        config.write(
            f'model["backbone"] = dict({SWIN!r}, _delete_=True)\n'
            'model["neck"]["in_channels"] = [8, 16, 32, 64]\n'
            'train_cfg = dict(max_epochs=1, val_interval=1)\n'
            'train_dataloader["dataset"]["indices"] = 2\n'
        )
    work = tmp_path / 'work'
    assert run_script('train', tiny_config, '--work-dir', work) == 0
    assert read_checkpoint(work / 'epoch_1.pth')['meta']['iter'] == 1
