"""What docs/pretrain.md prints to classify from Python gives what `mmpola predict` gives."""

import json
import sys
from pathlib import Path

import pytest
from mmengine.config import Config
from PIL import Image

from tests.helpers.pages import block_with, code_blocks
from tools import predict

CLASSES = ('crocus', 'iris', 'lily')


def test_a_classifier_from_python(root, tmp_path, monkeypatch, write_checkpoint):
    monkeypatch.chdir(tmp_path)
    run = Path('work_dirs/finetune_pola_swin_nano')
    run.mkdir(parents=True)
    cfg = Config.fromfile(root / 'configs' / 'finetune_pola_swin_nano.py')
    cfg.model.num_classes = len(CLASSES)
    config = run / 'finetune_pola_swin_nano.py'
    cfg.dump(config)
    meta = {'dataset_meta': {'classes': CLASSES}}
    checkpoint = write_checkpoint(config, run / 'best_accuracy_top1_epoch_3.pth', meta=meta)
    Image.effect_mandelbrot((160, 120), (-2, -1.5, 1, 1.5), 100).save('photo.jpg')

    names = {}
    exec(block_with(code_blocks(root / 'docs' / 'pretrain.md'), 'photo.jpg'), names)
    words = [str(config), str(checkpoint), 'photo.jpg', '--out', 'predictions']
    monkeypatch.setattr(sys, 'argv', ['predict.py', *words])
    predict.main()
    found = json.loads(Path('predictions/preds/photo.json').read_text())['classes']
    assert names['best'] == found[0]['class']
    for entry in found:
        assert names['scores'][entry['label']] == pytest.approx(entry['score'], abs=1e-6)
