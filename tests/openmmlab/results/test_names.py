"""Names of results."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mmpola.openmmlab.results.names import image_names, write_apart


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


class IoUMetric:
    """Notes what mmseg's would write."""

    def __init__(self, output_dir):
        self.output_dir = output_dir
        self.written = []

    def process(self, data_batch, data_samples):
        for sample in data_samples:
            self.written.append(f'{self.output_dir}/{Path(sample["img_path"]).stem}.png')


@pytest.mark.parametrize(
    ('paths', 'written'),
    [
        (('/d/x/a.jpg', '/d/y/b.jpg'), ('a', 'b')),  # as test servers expect
        (('/d/x/a.jpg', '/d/y/a.jpg'), ('x/a', 'y/a')),
        (('/d/a.jpg', '/d/a.png'), ('a.jpg', 'a.png')),
    ],
)
def test_a_metric_writes_a_file_for_each_image(paths, written, tmp_path):
    metric = IoUMetric(str(tmp_path))
    other = IoUMetric(None)
    evaluator = SimpleNamespace(metrics=[metric, other])
    loader = SimpleNamespace(dataset=Images(*paths))
    write_apart(SimpleNamespace(evaluator=evaluator, dataloader=loader))
    samples = [{'img_path': path} for path in paths]
    for _ in range(2):  # a validation comes again
        metric.process({}, samples)
    assert metric.written == [f'{tmp_path}/{name}.png' for name in written] * 2
    assert metric.output_dir == str(tmp_path)
