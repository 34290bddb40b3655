"""The pixels of pictures, and the colours of classes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmseg.visualization import SegLocalVisualizer

from mmpola.images import class_colours, inputs_as_rgb, place_of_name


@pytest.mark.parametrize('channels', [1, 2, 4, 5])
def test_images_of_any_number_of_channels_are_shown(channels):
    values = torch.arange(channels).view(1, channels, 1, 1) * 50.0 + 10
    images = inputs_as_rgb(values.expand(2, -1, 8, 8), SimpleNamespace(), None)
    assert len(images) == 2
    assert images[0].shape == (8, 8, 3)
    expected = (10, 10, 10) if channels < 3 else (10, 60, 110)
    assert tuple(images[0][0, 0]) == expected


def test_images_of_16_bits_are_scaled_to_their_range():
    values = torch.tensor([0.0, 30000, 60000]).view(1, 1, 1, 3)
    (image,) = inputs_as_rgb(values, SimpleNamespace(), None)
    assert image[0, :, 0].tolist() == [0, 128, 255]


def test_each_class_has_a_colour_if_the_data_set_has_too_few():
    colours = class_colours([(1, 2, 3)], 12)
    assert len(set(colours)) == 12
    assert class_colours([(1, 2, 3)], 1) == [(1, 2, 3)]


def test_names_of_classes_are_drawn_where_mmseg_draws_them():
    visualizer = SegLocalVisualizer('places')
    random = np.random.default_rng(0)
    for height, width in ((1, 1), (7, 5), (6, 30), (40, 50)):
        mask = (random.random((height, width)) < 0.4).astype(np.uint8)
        mask[-1, 0] = 1
        assert place_of_name(mask).tolist() == visualizer._get_center_loc(mask).tolist()
