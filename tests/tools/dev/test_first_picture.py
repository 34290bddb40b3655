"""The README's first picture is drawn from a detector's checkpoint and a photograph."""

import sys

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from tools.dev import first_picture


def test_boxes_and_streams_are_drawn(root, tmp_path, monkeypatch):
    config = root / 'benchmarks' / 'experiments' / 'configs' / 'detect_pola_swin.py'
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'weights.pth')
    pixels = np.random.default_rng(0).integers(0, 255, (120, 160, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / 'photo.jpg')
    out = tmp_path / 'cells.jpg'
    words = [config, tmp_path / 'weights.pth', tmp_path / 'photo.jpg', '--point', 80, 60]
    words += ['--out', out]
    monkeypatch.setattr(sys, 'argv', ['first_picture.py', *map(str, words)])
    first_picture.main()
    drawn = np.asarray(Image.open(out).convert('RGB'))
    assert drawn.shape[1] > drawn.shape[0] > 400
    assert drawn.std() > 10
