"""Which instances are described and drawn, and how a classifier's best classes are drawn."""

import numpy as np
import pytest
import torch
from mmdet.apis import DetInferencer
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from PIL import Image

from mmpola.apps.prediction.drawing import draw_classes, shown_name
from mmpola.apps.prediction.predict import detections, visible_instances


def test_boxes_are_clipped_to_the_image_and_those_outside_left_out():
    boxes = [[-3, 10, 50, 90], [20, 20, 128, 60], [97, 0, 128, 80], [5, 5, 9, 9]]
    instances = InstanceData(
        bboxes=torch.tensor(boxes, dtype=torch.float32),
        scores=torch.tensor([0.5, 0.9, 0.8, 0.1]),
        labels=torch.zeros(4, dtype=torch.long),
        masks=torch.ones(4, 80, 96, dtype=torch.bool),
    )
    found = visible_instances(instances, (80, 96), 0.3)
    described = detections(
        DetInferencer.pred2dict(None, DetDataSample(pred_instances=found)), ('circle',)
    )
    assert [entry['box'] for entry in described] == [
        [20.0, 20.0, 96.0, 60.0],
        [0.0, 10.0, 50.0, 80.0],
    ]
    assert [entry['score'] for entry in described] == pytest.approx([0.9, 0.5])
    assert described[0]['mask']['size'] == [80, 96]


@pytest.mark.parametrize(
    ('size', 'drawn'), [((10, 20), (768, 288)), ((40, 20), (576, 384)), ((1, 900), (768, 288))]
)
def test_classes_are_drawn_beside_the_image(size, drawn, tmp_path):
    pixels = np.full((*size, 3), (200, 40, 40), np.uint8)
    found = [{'class': 'cat_$x^', 'score': 0.75}, {'class': 'dog', 'score': 0.25}]
    draw_classes(pixels, found, tmp_path / 'drawn.png')
    picture = Image.open(tmp_path / 'drawn.png').convert('RGB')
    assert picture.size == drawn
    levels = np.asarray(picture).astype(int)
    image, panel = levels[:, : drawn[0] - 384], levels[:, drawn[0] - 384 :]
    scale = 384 / max(size)
    red = (np.abs(image - (200, 40, 40)).max(-1) < 8).sum()
    assert red == pytest.approx(
        max(round(size[0] * scale), 1) * round(size[1] * scale), rel=0.05, abs=384
    )
    blue = (np.abs(panel - (0, 114, 178)).max(-1) < 8).sum(1)  # pixels of bars in each row
    assert sorted({int(n) for n in blue if n > 50}) == pytest.approx(
        [0.25 * 344, 0.75 * 344], abs=2
    )


def test_names_are_drawn_in_words_and_shortened():
    assert shown_name('n02102040') == 'English springer'
    assert shown_name('n99999999') == 'n99999999'
    assert shown_name('x' * 50) == 'x' * 37 + '…'
