"""How a classifier's best classes are drawn."""

import numpy as np
import pytest

from mmpola.openmmlab.predict.drawing import draw_classes, shortened
from mmpola.openmmlab.predict.results import name_in_words


@pytest.mark.parametrize(
    ('size', 'drawn'), [((10, 20), (768, 288)), ((40, 20), (576, 384)), ((1, 900), (768, 288))]
)
def test_classes_are_drawn_beside_the_image(size, drawn):
    pixels = np.full((*size, 3), (200, 40, 40), np.uint8)
    best = [{'name': 'cat_$x^', 'score': 0.75}, {'name': 'dog', 'score': 0.25}]
    picture = draw_classes(pixels, best)
    width, height = drawn
    assert picture.shape == (height, width, 3)
    assert picture.dtype == np.uint8
    levels = picture.astype(int)
    image = levels[:, : width - 384]
    panel = levels[:, width - 384 :]
    red = (np.abs(image - (200, 40, 40)).max(-1) < 8).sum()
    scale = 384 / max(size)
    area = max(round(size[0] * scale), 1) * round(size[1] * scale)
    assert red == pytest.approx(area, rel=0.05, abs=384)
    blue = (np.abs(panel - (0, 114, 178)).max(-1) < 8).sum(1)  # pixels of bars in each row
    lengths = sorted({int(count) for count in blue if count > 50})
    assert lengths == pytest.approx([0.25 * 344, 0.75 * 344], abs=2)


def test_names_are_drawn_in_words_and_shortened():
    assert name_in_words('n02102040') == 'English springer'
    assert name_in_words('n99999999') == 'n99999999'
    assert shortened('x' * 50) == 'x' * 37 + '…'
