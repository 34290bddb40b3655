"""Maps of one pixel, whose statistics over one image BatchNorm refuses."""

import pytest
import torch
from mmengine.config import Config
from torch import nn

from mmpola.engine.maps import check_batch_norm
from tests.helpers.processes import run_script
from tests.helpers.refusals import refusal

pytestmark = pytest.mark.usefixtures('unformatted_configs')

ONE_IMAGE = Config({'train_dataloader': {'batch_size': 1}, 'launcher': 'pytorch'})


def pooled(norm, size=1):
    return nn.Sequential(nn.AdaptiveAvgPool2d(size), nn.Sequential(nn.Conv2d(2, 2, 1), norm))


def test_one_image_for_a_upernet_is_refused_before_data_is_read(root, capsys):
    config = root / 'configs' / 'upernet_pola_swin_t_160k.py'
    assert run_script('train', config, '--cfg-options', 'train_dataloader.batch_size=1') == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith('error: '))
    assert line.startswith('error: train_dataloader.batch_size: expected at least 2 ')
    assert 'model.decode_head.psp_modules.0 ' in line
    assert line.endswith(', got 1')


def test_one_image_where_a_layer_normalises_one_pixel():
    message = refusal(check_batch_norm, ONE_IMAGE, pooled(nn.BatchNorm2d(2)))
    assert message.startswith('train_dataloader.batch_size: expected at least 2 ')
    assert refusal(check_batch_norm, ONE_IMAGE, pooled(nn.SyncBatchNorm(2))) == message


@pytest.mark.parametrize(
    ('images', 'model'),
    [
        (2, pooled(nn.BatchNorm2d(2))),
        (1, pooled(nn.BatchNorm2d(2), size=2)),
        (1, pooled(nn.GroupNorm(1, 2))),
        (1, nn.Sequential(nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1))),
    ],
    ids=['two images', 'four pixels', 'GroupNorm', 'pooled later'],
)
def test_other_models_train(images, model):
    check_batch_norm(Config({'train_dataloader': {'batch_size': images}}), model)
    model(torch.randn(images, 2, 4, 4))  # else torch raises a ValueError


def test_one_image_on_each_of_several_gpus_is_enough_for_sync_bn(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setenv('WORLD_SIZE', '2')
    check_batch_norm(ONE_IMAGE, pooled(nn.SyncBatchNorm(2)))
    refusal(check_batch_norm, ONE_IMAGE, pooled(nn.BatchNorm2d(2)))
