"""Generated Pathfinder images: labels from the geometry, paths that keep their distance, the official layout."""

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from mmpola.messages import UsageError
from mmpola.sequences import snakes
from mmpola.sequences.pathfinder import write_pathfinder


@pytest.fixture(scope='module')
def scenes():
    """30 scenes of short paths with their images."""
    return [snakes.draw_scene(np.random.default_rng(seed), 6, 2, 10) for seed in range(30)]


def test_the_label_says_whether_the_markers_are_the_ends_of_one_path(scenes):
    for scene, _ in scenes:
        ends = [{path[0].tail, path[-1].head} for path in scene.paths]
        assert scene.label == (set(scene.markers) in ends)
        assert all(any(marker in end for end in ends) for marker in scene.markers)
    assert {scene.label for scene, _ in scenes} == {0, 1}


def test_paths_are_chains_of_paddles_inside_the_window(scenes):
    for scene, _ in scenes:
        assert [len(path) for path in scene.paths] == [6, 6]
        for path in (*scene.paths, *scene.distractors):
            for last, paddle in pairwise(path):
                turn = abs((paddle.angle - last.angle + np.pi) % (2 * np.pi) - np.pi)
                assert turn < np.pi / 2
                assert np.hypot(*np.subtract(paddle.tail, last.head)) < 4
                assert np.hypot(*np.subtract(paddle.head, paddle.tail)) == pytest.approx(2, abs=0.5)
            assert all(0 < part < 31 for paddle in path for part in paddle.head)
        assert all(14 <= part <= 17 for part in scene.paths[0][0].tail)


def test_strokes_and_markers_are_where_the_geometry_says(scenes):
    for scene, image in scenes:
        assert image.dtype == np.uint8
        assert (image.min(), image.max()) == (0, 255)
        for row, column in (np.rint(marker).astype(int) for marker in scene.markers):
            assert image[row, column] > 180
        near = np.zeros((32, 32), bool)
        for path in (*scene.paths, *scene.distractors):
            for paddle in path:
                row, column = np.rint(np.add(paddle.tail, paddle.head) / 2).astype(int)
                assert image[row - 1 : row + 2, column - 1 : column + 2].max() > 80
                near[max(0, row - 3) : row + 4, max(0, column - 3) : column + 4] = True
        assert image[~near].max() < 80


def test_distractors_are_brighter_than_paths():
    paddle = snakes.Paddle((10, 10), (10, 12), (10, 9), 0.0)
    other = snakes.Paddle((20, 10), (20, 12), (20, 9), 0.0)
    image = snakes.render(snakes.Scene(([paddle], [paddle]), [[other]], ((28, 28), (28, 28)), 1))
    assert image[20].max() == 255
    assert 190 < image[10].max() < 220


def test_the_layout_is_read_back_and_does_not_depend_on_workers(build, tmp_path, monkeypatch):
    monkeypatch.setattr('mmpola.sequences.pathfinder.PER_FOLDER', 8)
    for name, seed, workers in (('one', 3, 1), ('two', 3, 2), ('other', 4, 1)):
        write_pathfinder(tmp_path / name, 20, contour_length=6, seed=seed, workers=workers)
    level = tmp_path / 'one' / 'curv_contour_length_6'
    names = [f'imgs/{index // 8}/sample_{index % 8}.png' for index in range(20)]
    one, two, other = (
        [(tmp_path / folder / level.name / name).read_bytes() for name in names] for folder in ('one', 'two', 'other')
    )
    assert one == two != other
    data = [build('Pathfinder', tmp_path / 'one', split, level=level.name) for split in ('train', 'dev', 'test')]
    assert [len(split) for split in data] == [16, 2, 2]
    read = {
        (item['inputs'].numpy().tobytes(), item['data_samples'].gt_label)
        for split in data
        for item in (split[index] for index in range(len(split)))
    }
    drawn = [snakes.draw_scene(np.random.Generator(np.random.PCG64([3, number])), 6, 2, 10) for number in range(20)]
    assert read == {(image.tobytes(), scene.label) for scene, image in drawn}
    assert np.array_equal(np.asarray(Image.open(level / names[9])), drawn[9][1])


def test_the_arguments_are_checked(tmp_path):
    with pytest.raises(UsageError, match=r'^contour_length: expected an integer from 3 to 18, got 30$'):
        write_pathfinder(tmp_path / 'images', 1, contour_length=30)


@pytest.mark.real_data
def test_the_images_look_like_those_of_the_sample(real_data):
    """Shares of dark and bright pixels and the mean; each varies by a few percent between sets of 60 images."""
    folder = real_data / 'lra_mini/pathfinder32/curv_contour_length_14/imgs/1'
    sample = np.stack([np.asarray(Image.open(path)) for path in folder.iterdir()])
    drawn = np.stack([snakes.draw_scene(np.random.default_rng(seed), 14, 4, 5)[1] for seed in range(60)])
    assert drawn.mean() == pytest.approx(sample.mean(), rel=0.1)
    assert (drawn > 64).mean() == pytest.approx((sample > 64).mean(), rel=0.1)
    assert (drawn > 200).mean() == pytest.approx((sample > 200).mean(), rel=0.25)
