"""No photograph is in two splits of an experiment, also not as a copy of another size."""

from itertools import combinations

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image, ImageOps

from benchmarks.experiments.alike import alike, fingerprints, read_fingerprints
from benchmarks.experiments.plan import FOLDER, Run

SPLITS = ('train', 'val', 'test')


def test_no_photograph_of_raccoons_is_listed_twice():
    """The photographs are not in this repository, only their fingerprints."""
    found = read_fingerprints(FOLDER / 'splits' / 'raccoons_fingerprints.txt')
    assert len(found) == 200
    names = [(FOLDER / f'splits/raccoons_{split}.txt').read_text().split() for split in SPLITS]
    assert [len(one) for one in names] == [115, 28, 49]
    listed = {name: found[name] for one in names for name in one}
    assert len(listed) == sum(map(len, names))
    assert alike(listed, listed) == []
    # what was left out is the copy of a photograph that is listed
    for name in found.keys() - listed.keys():
        assert alike({name: found[name]}, listed)


def test_photographs_of_cells_are_in_one_split(real_data):
    """The splits are the publisher's, who has two photographs of one place in the first two."""
    folder = real_data / 'bccd'
    found = {}
    for split in SPLITS:
        names = (folder / 'ImageSets' / 'Main' / f'{split}.txt').read_text().split()
        found[split] = fingerprints(folder / 'JPEGImages' / f'{name}.jpg' for name in names)
    pairs = {(a, b): alike(found[a], found[b]) for a, b in combinations(SPLITS, 2)}
    assert pairs.pop(('train', 'val')) == [('BloodImage_00038', 'BloodImage_00037')]
    assert not any(pairs.values())


@pytest.mark.parametrize('variant', ['digits', 'pictures', 'classify_full'])
def test_a_picture_has_one_place_in_its_row(variant):
    config = Config.fromfile(Run(variant, 0).config)
    datasets = [config[f'{split}_dataloader'].dataset for split in SPLITS]
    rows = [dataset for dataset in datasets if 'places' in dataset]
    assert len(rows) >= 2
    assert len({(dataset.root, dataset.every) for dataset in rows}) == 1
    for first, second in combinations(rows, 2):
        assert not set(first.places) & set(second.places)
    others = {dataset.root for dataset in datasets if 'places' not in dataset}
    assert rows[0].root not in others


def test_copies_are_alike_at_another_size_and_mirrored(tmp_path):
    generator = np.random.default_rng(0)
    for number in range(3):
        coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), np.uint8))
        coarse.resize((320, 240), Image.Resampling.BICUBIC).save(tmp_path / f'{number}.png')
    image = Image.open(tmp_path / '0.png')
    image.save(tmp_path / 'file.png')
    image.resize((97, 71)).save(tmp_path / 'small.jpg', quality=80)
    ImageOps.mirror(image).save(tmp_path / 'mirrored.jpg')
    found = fingerprints(tmp_path.iterdir())
    one = {'0': found.pop('0')}
    assert alike(one, found) == [('0', 'file'), ('0', 'mirrored'), ('0', 'small')]
    assert found['file'].content == one['0'].content != found['small'].content
    others = {name: found[name] for name in ('1', '2')}
    assert alike(others, others) == []
