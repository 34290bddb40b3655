"""Which instances are described and drawn, and how a classifier's best classes are drawn."""

import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData
from PIL import Image

from mmpola.prediction.drawing import draw_classes, shown_name, without_overlaps
from mmpola.prediction.results import detections, visible_instances


def instances(boxes, scores, labels=None):
    return InstanceData(
        bboxes=torch.as_tensor(boxes, dtype=torch.float32),
        scores=torch.tensor(scores, dtype=torch.float32),
        labels=torch.tensor(labels or [0] * len(scores), dtype=torch.long),
        masks=torch.ones(len(scores), 80, 96, dtype=torch.bool),
    )


def test_boxes_are_clipped_to_the_image_and_those_outside_left_out():
    boxes = [[-3, 10, 50, 90], [20, 20, 128, 60], [97, 0, 128, 80], [5, 5, 9, 9]]
    found = visible_instances(instances(boxes, [0.5, 0.9, 0.8, 0.1]), (80, 96), 0.3)
    described = detections(found, ('circle',))
    assert [entry['box'] for entry in described] == [[20.0, 20.0, 96.0, 60.0], [0.0, 10.0, 50.0, 80.0]]
    assert [entry['score'] for entry in described] == pytest.approx([0.9, 0.5])
    assert described[0]['mask']['size'] == [80, 96]


@pytest.mark.parametrize(
    ('boxes', 'labels', 'drawn'),
    [
        ([[0, 0, 20, 20], [0, 0, 20, 18]], [0, 1], 1),  # 90 % of the union, other classes
        ([[0, 0, 20, 20], [10, 0, 30, 20]], [0, 0], 2),  # a third of the union, half of each
        ([[0, 0, 20, 20], [5, 5, 10, 10]], [0, 0], 1),  # inside a box of the same class
        ([[5, 5, 10, 10], [0, 0, 20, 20]], [0, 0], 1),  # around it
        ([[0, 0, 20, 20], [5, 5, 10, 10]], [0, 1], 2),  # inside a box of another class, such as a tie on a person
        ([[0, 0, 20, 20], [0, 11, 20, 31], [0, 22, 20, 42]], [0, 0, 0], 3),  # a chain
        ([], [], 0),
    ],
)
def test_of_boxes_of_the_same_object_the_best_is_drawn(boxes, labels, drawn):
    scores = [0.9, 0.8, 0.7][: len(boxes)]
    found = instances(torch.tensor(boxes).reshape(-1, 4), scores, labels)
    assert without_overlaps(found).scores.tolist() == pytest.approx(scores[:drawn])


def test_a_hidden_box_hides_no_other():
    """The second box overlaps both others, which do not overlap."""
    found = instances([[0, 0, 20, 20], [0, 5, 20, 25], [0, 12, 20, 32]], [0.9, 0.8, 0.7])
    assert without_overlaps(found).scores.tolist() == pytest.approx([0.9, 0.7])


@pytest.mark.parametrize(('size', 'drawn'), [((10, 20), (768, 288)), ((40, 20), (576, 384)), ((1, 900), (768, 288))])
def test_classes_are_drawn_beside_the_image(size, drawn, tmp_path):
    pixels = np.full((*size, 3), (200, 40, 40), np.uint8)
    found = [{'class': 'cat_$x^', 'score': 0.75}, {'class': 'dog', 'score': 0.25}]
    draw_classes(pixels, found, tmp_path / 'inner' / 'drawn.png')
    picture = Image.open(tmp_path / 'inner' / 'drawn.png').convert('RGB')
    assert picture.size == drawn
    levels = np.asarray(picture).astype(int)
    image, panel = levels[:, : drawn[0] - 384], levels[:, drawn[0] - 384 :]
    scale = 384 / max(size)
    red = (np.abs(image - (200, 40, 40)).max(-1) < 8).sum()
    assert red == pytest.approx(max(round(size[0] * scale), 1) * round(size[1] * scale), rel=0.05, abs=384)
    blue = (np.abs(panel - (0, 114, 178)).max(-1) < 8).sum(1)  # pixels of bars in each row
    assert sorted({int(n) for n in blue if n > 50}) == pytest.approx([0.25 * 344, 0.75 * 344], abs=2)


def test_names_are_drawn_in_words_and_shortened():
    assert shown_name('n02102040') == 'English springer'
    assert shown_name('n99999999') == 'n99999999'
    assert shown_name('x' * 50) == 'x' * 37 + '…'
