"""Scenes: reproducible, varied, and with visible objects."""

import numpy as np
import pytest

from mmpola.shapes import CLASSES, Scene, draw_scene
from mmpola.shapes.scene import _Painting


@pytest.fixture(scope='module')
def scenes() -> list[Scene]:
    return [draw_scene(seed=5, index=index) for index in range(90)]


def test_a_scene_is_reproducible_and_unique(scenes):
    again = draw_scene(seed=5, index=7)
    assert np.array_equal(again.image, scenes[7].image)
    assert [i.class_index for i in again.instances] == [i.class_index for i in scenes[7].instances]
    assert all(np.array_equal(a.mask, b.mask) for a, b in zip(again.instances, scenes[7].instances, strict=True))
    assert len({scene.image.tobytes() for scene in scenes}) == len(scenes)
    assert not np.array_equal(draw_scene(seed=6, index=7).image, again.image)


@pytest.mark.parametrize('size', [(192, 160), (64, 64), (301, 97)])
def test_size_is_width_and_height(size):
    scene = draw_scene(0, 0, size)
    assert scene.image.shape == (size[1], size[0], 3)
    assert scene.image.dtype == np.uint8
    assert scene.instances
    assert all(i.mask.shape == (size[1], size[0]) and i.mask.dtype == bool for i in scene.instances)


def test_every_kind_of_scene_and_object_occurs(scenes):
    instances = [instance for scene in scenes for instance in scene.instances]
    objects = [instance for instance in instances if not instance.iscrowd]
    extents = [max(np.ptp(axis) + 1 for axis in np.nonzero(instance.mask)) for instance in objects]
    assert {instance.class_index for instance in objects} == set(range(len(CLASSES)))
    assert 1 <= sum(not scene.instances for scene in scenes) <= 13  # 5 % expected
    assert 1 <= len(instances) - len(objects) <= 18  # 8 % expected
    assert max(sum(not i.iscrowd for i in scene.instances) for scene in scenes) == 6
    assert min(extents) < 16
    assert max(extents) > 80
    assert np.mean([24 <= extent <= 96 for extent in extents]) > 0.7


def test_masks_hold_the_visible_part_and_enough_of_it(scenes):
    for scene in scenes:
        assert np.sum([instance.mask for instance in scene.instances], axis=0).max(initial=0) <= 1
        assert all(instance.mask.sum() >= 24 for instance in scene.instances)


def test_no_painted_object_is_missing_or_mostly_hidden(monkeypatch):
    painted: list[np.ndarray] = []
    cover = _Painting._cover

    def spy(self, class_index, mask, iscrowd=False):
        painted.append(mask.copy())
        cover(self, class_index, mask, iscrowd)

    monkeypatch.setattr(_Painting, '_cover', spy)
    hidden = 0
    for index in range(40):
        painted.clear()
        scene = draw_scene(11, index)
        assert len(painted) == len(scene.instances)
        for number, (whole, instance) in enumerate(zip(painted, scene.instances, strict=True)):
            above = np.any(painted[number + 1 :], axis=0) if painted[number + 1 :] else np.zeros_like(whole)
            assert np.array_equal(instance.mask, whole & ~above)
            assert instance.mask.sum() >= 0.3 * whole.sum()
            hidden += bool((whole & above).any())
    assert hidden >= 10  # occlusion is part of the task


def test_objects_contrast_with_their_surroundings(scenes):
    """Most pixels just inside an edge differ from the mean just outside it."""
    shares = []
    for scene in scenes:
        everything = np.any([i.mask for i in scene.instances], axis=0) if scene.instances else None
        for instance in scene.instances:
            grown = np.zeros_like(instance.mask)
            for shift in range(-3, 4):
                grown |= np.roll(instance.mask, shift, axis=0) | np.roll(instance.mask, shift, axis=1)
            outside = scene.image[grown & ~everything]
            if len(outside) > 20:
                inside = scene.image[instance.mask].astype(float)
                shares.append(np.mean(np.linalg.norm(inside - outside.mean(axis=0), axis=1) > 60))
    assert np.mean(np.array(shares) > 0.8) > 0.95


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'seed': -1, 'index': 0}, 'seed: expected 0 or more, got -1'),
        ({'seed': 0, 'index': -2}, 'index: expected 0 or more, got -2'),
        (
            {'seed': 0, 'index': 0, 'size': (63, 160)},
            'size: expected width and height from 64 to 2048 pixels, got (63, 160)',
        ),
        ({'seed': 0, 'index': 0, 'size': (96,)}, 'size: expected width and height from 64 to 2048 pixels, got (96,)'),
    ],
)
def test_arguments_outside_their_range_are_refused(arguments, message):
    with pytest.raises(ValueError) as raised:
        draw_scene(**arguments)
    assert str(raised.value) == message
