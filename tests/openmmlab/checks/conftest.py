"""Copies of the generated data for tests to damage, and configs that train on them."""

import json
import shutil

import pytest
from mmengine.config import Config


@pytest.fixture
def coco(shapes, tmp_path):
    """A copy of the generated data in COCO layout."""
    return shutil.copytree(shapes / 'coco', tmp_path / 'coco')


@pytest.fixture
def ade(shapes, tmp_path):
    """A copy of the generated data in ADE20K layout."""
    return shutil.copytree(shapes / 'ade', tmp_path / 'ade')


@pytest.fixture
def detection(tiny_config, coco):
    """The tiny detector's config, with the copy as training data."""
    cfg = Config.fromfile(tiny_config)
    cfg.train_dataloader.dataset.data_root = f'{coco}/'
    cfg.param_scheduler = []  # that of the base is for a longer run
    return cfg


@pytest.fixture
def segmentation(tiny_segmentation, ade):
    """The tiny segmenter's config, with the copy as training data."""
    cfg = Config.fromfile(tiny_segmentation)
    cfg.train_dataloader.dataset.data_root = str(ade)
    cfg.param_scheduler = []
    return cfg


class Annotations(dict):
    """The content of an annotation file, for a test to change and save."""

    def __init__(self, path):
        super().__init__(json.loads(path.read_text()))
        self.path = path

    def save(self):
        self.path.write_text(json.dumps(self))


@pytest.fixture
def annotations(coco):
    """The training annotations of the copy."""
    return Annotations(coco / 'annotations' / 'instances_train2017.json')
