"""`mmpola predict` without a config: the detector of everyday things that comes with mmpola."""

import json

import pytest
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmpola.openmmlab.start.fit import read_training_checkpoint
from mmpola.zoo import EVERYDAY_DETECTOR
from tests.helpers.processes import run_script

CHECKPOINT = f'mmpola://{EVERYDAY_DETECTOR}'


@pytest.mark.slow
@pytest.mark.real_data
def test_it_finds_things_in_photographs_that_it_has_not_seen(real_data, tmp_path):
    """84 photographs of COCO's training set: the detector has learned from its validation set."""
    folder = real_data / 'coco_mini'
    truth = COCO(str(folder / 'annotations' / 'instances_train2017.json'))
    categories = sorted(truth.cats)
    names = [truth.cats[category]['name'] for category in categories]
    assert list(read_training_checkpoint(CHECKPOINT).classes) == names

    nms = 'model.test_cfg.rcnn.nms'
    options = ['--cfg-options', f'{nms}.iou_threshold=0.5', f'{nms}.class_agnostic=False']
    assert run_script('predict', folder / 'train2017', '--out', tmp_path, *options) == 0
    detections = []
    for image in truth.imgs.values():
        stem = image['file_name'].partition('.')[0]
        found = json.loads((tmp_path / 'preds' / f'{stem}.json').read_text())
        for (left, top, right, bottom), score, label in zip(
            found['bboxes'], found['scores'], found['labels'], strict=True
        ):
            detections.append(
                {
                    'image_id': image['id'],
                    'category_id': categories[label],
                    'score': score,
                    'bbox': [left, top, right - left, bottom - top],
                }
            )
    evaluation = COCOeval(truth, truth.loadRes(detections), 'bbox')
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    average_precision, at_half_overlap = evaluation.stats[:2]
    assert average_precision > 0.04
    assert at_half_overlap > 0.08


def test_what_it_knows_is_listed(capsys):
    assert run_script('predict', '--classes') == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 80
    assert lines[:2] == ['person', 'bicycle']


def test_a_photograph_without_everyday_things(tmp_path, capsys):
    photo = tmp_path / 'photo.png'
    Image.new('RGB', (64, 48), 'white').save(photo)
    assert run_script('predict', photo, '--out', tmp_path / 'out') == 0
    line = capsys.readouterr().out.splitlines()[0]
    advice = '`mmpola predict --classes` lists them'
    assert line == f'{photo}: nothing found: it knows 80 everyday things, {advice}'


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ([], 'expected images, or CONFIG CHECKPOINT IMAGES, got none'),
        (
            ['configs/a.py', 'photo.jpg'],
            'expected CONFIG CHECKPOINT IMAGES, got only configs/a.py photo.jpg',
        ),
    ],
)
def test_incomplete_arguments_are_refused(arguments, message, capsys):
    assert run_script('predict', *arguments) == 2
    assert capsys.readouterr().err.strip().endswith(f'error: {message}')
