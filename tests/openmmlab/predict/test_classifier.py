"""tools/predict.py with a classifier: its files agree with the evaluation of the same images."""

import json

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import ExifTags, Image

from mmpola.pretraining.class_folders import ClassFolders
from tests.helpers.prediction import open_predictor
from tests.helpers.processes import run_script
from tests.helpers.training import small_config

CLASSES = ('azure', 'lime', 'scarlet')


@pytest.fixture
def config(colours, tmp_path):
    """A config of a small classifier of three classes."""
    path = tmp_path / 'small.py'
    small_config(colours, tmp_path / 'work').dump(path)
    return path


def test_the_best_classes_are_drawn_and_written(
    config, write_checkpoint, colours, tmp_path, capsys
):
    meta = {'dataset_meta': {'classes': CLASSES}}
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth', meta=meta)
    out = tmp_path / 'out'
    wide = tmp_path / 'wide.png'
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new('RGB', (90, 50), (10, 200, 30)).save(wide, exif=exif)
    assert run_script('predict', config, checkpoint, colours / 'val', wide, '--out', out) == 0
    printed = capsys.readouterr().out
    assert '\nwarning: 1 of 10 photographs are stored turned (EXIF), which class ' in printed
    assert printed.endswith(f'10 images done, 0 skipped; see {out}/vis\n')

    cfg = Config.fromfile(config)
    model = MODELS.build(cfg.model)
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    dataset = ClassFolders(**{k: v for k, v in cfg.test_dataloader.dataset.items() if k != 'type'})
    for index in range(len(dataset)):
        item = dataset[index]
        with torch.no_grad():
            scores = model.eval()(item['inputs'][None]).softmax(1)[0]
        path = dataset.get_data_info(index)['img_path']
        name = path.removeprefix(f'{colours}/val/').removesuffix('.png')
        found = json.loads((out / 'preds' / f'{name}.json').read_text())
        assert (found['image'], found['width'], found['height']) == (path, 36, 40)
        order = scores.argsort(descending=True).tolist()
        best = found['classes']
        assert [entry['label'] for entry in best] == order
        assert [entry['class'] for entry in best] == [CLASSES[label] for label in order]
        assert f'{path}: {CLASSES[order[0]]} {scores[order[0]]:.1%}\n' in printed
        found_scores = [entry['score'] for entry in best]
        assert found_scores == pytest.approx(scores[order].tolist(), abs=1e-5)
    drawn = np.asarray(Image.open(out / 'vis' / 'wide.jpg')).astype(int)
    assert drawn.shape == (288, 768, 3)
    assert np.abs(drawn[144, 200] - (10, 200, 30)).max() < 8


@pytest.mark.parametrize(
    ('classes', 'names'),
    [
        (None, ('blue', 'green', 'red')),  # those of the training folder
        (['one', 'two', 'three'], ('one', 'two', 'three')),
        (['one', 'two'], ('class 0', 'class 1', 'class 2')),
        ('gone', ('class 0', 'class 1', 'class 2')),
    ],
)
def test_class_names_that_the_checkpoint_lacks(classes, names, config, write_checkpoint, tmp_path):
    cfg = Config.fromfile(config)
    if classes is not None:
        cfg.test_dataloader.dataset.classes = classes
    checkpoint = write_checkpoint(config, tmp_path / 'bare.pth')
    predictor = open_predictor(cfg, checkpoint)
    assert predictor.meta['classes'] == names
