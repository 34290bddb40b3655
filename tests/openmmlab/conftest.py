"""Work dirs of the small detector `tiny_config`."""

import os

import pytest
import torch

from tests.helpers.configs import STATE


@pytest.fixture
def work(tmp_path):
    """A work dir as after two epochs of tiny.py; its files have the right names but no content."""
    folder = tmp_path / 'work'
    folder.mkdir()
    for number in (1, 2):
        path = folder / f'epoch_{number}.pth'
        torch.save(number, path)
        os.utime(path, (number, number))
    (folder / 'last_checkpoint').write_text(str(folder / 'epoch_2.pth'))
    (folder / 'tiny.py').write_text('')
    return folder


@pytest.fixture
def trained_work(work, tiny_config, write_checkpoint):
    """The work dir with a real checkpoint of epoch 2 of 3."""
    write_checkpoint(tiny_config, work / 'epoch_2.pth', **STATE)
    return work
