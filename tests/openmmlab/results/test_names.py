"""Names of results."""

from pathlib import Path

import pytest

from mmpola.openmmlab.results.names import image_names


class Images:
    """A data set that lists the paths of its images."""

    def __init__(self, *paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def get_data_info(self, index):
        return {'img_path': self.paths[index]}


@pytest.mark.parametrize(
    ('paths', 'names'),
    [
        (('/d/a.jpg', '/d/b.jpg'), ('a', 'b')),
        (('/d/x/a.jpg', '/d/y/z/a.jpg'), ('x/a', 'y/z/a')),
        (('/d/a.jpg', '/d/a.png', '/d/a.jpg'), ('a.jpg', 'a.png')),
        (('/d/a.jpg', '/d/a.png', '/d/b.jpg'), ('a.jpg', 'a.png', 'b.jpg')),
        (('/d/val/a.jpg', '/d/val2/a.jpg'), ('val/a', 'val2/a')),
        (('d/a.jpg', './e/a.jpg'), ('d/a', 'e/a')),
        ((), ()),
    ],
)
def test_names_are_paths_inside_the_common_folder(paths, names):
    assert image_names(Images(*paths)) == dict(zip(paths, map(Path, names), strict=False))


def test_a_data_set_that_lists_nothing():
    assert image_names([1, 2]) == {}
