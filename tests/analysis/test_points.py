"""Points that a user chooses, and their tokens."""

import pytest

from mmpola.analysis.points import centre, parse_points, token_at, token_stride, visible_pixels
from mmpola.messages import UsageError
from mmpola.prediction import Geometry


def test_points_are_pairs_of_integers():
    assert parse_points(['120,80', '0,7']) == [(120, 80), (0, 7)]
    for wrong in ('120', '120,80,3', '1.5,2', 'a,b'):
        with pytest.raises(UsageError) as raised:
            parse_points([wrong])
        assert str(raised.value) == f'--points: expected X,Y in pixels, such as 120,80, got {wrong}'


@pytest.mark.parametrize(
    ('size', 'grid', 'stride'),
    [((64, 96), (16, 24), 4), ((33, 47), (2, 2), 32), ((97, 130), (7, 9), 16), ((800, 1344), (200, 336), 4)],
)
def test_stride_of_a_grid(size, grid, stride):
    assert token_stride(size, grid) == stride


def test_a_grid_that_no_stride_gives():
    with pytest.raises(ValueError) as raised:
        token_stride((64, 64), (5, 5))
    assert str(raised.value) == 'grid: expected (64, 64) divided by a power of two, got (5, 5)'


def test_tokens_of_a_resized_and_cropped_image():
    """An image of 400 x 200 pixels, halved and cropped to its middle 100 x 100 pixels."""
    geometry = Geometry(scale=(0.5, 0.5), shift=(-50.0, 0.0), size=(100, 100))
    assert visible_pixels(geometry, (200, 400)) == (100, 0, 300, 200)
    assert token_at((100, 0), geometry, 4, (25, 25)) == (0, 0)
    assert token_at((107, 8), geometry, 4, (25, 25)) == (1, 0)
    assert token_at((108, 7), geometry, 4, (25, 25)) == (0, 1)
    assert token_at((299, 199), geometry, 4, (25, 25)) == (24, 24)


@pytest.mark.parametrize('shift', [-1048.0, -1059.9, -1080.0])
def test_less_than_a_pixel_is_one_pixel(shift):
    """An image of 60 x 1 pixels, enlarged 36 times and cropped to 32 x 32."""
    geometry = Geometry(scale=(36.0, 36.0), shift=(shift, -2.0), size=(32, 32))
    left, top, right, bottom = visible_pixels(geometry, (1, 60))
    assert (top, right - left, bottom) == (0, 1, 1)
    assert left <= (16 - shift) / 36 <= right
    assert centre(geometry, (1, 60)) == (left, 0)
