"""Keys number the samples of a run; batches start at any step; keys decide the random numbers."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import DataLoader

from mmpola.openmmlab.run import seeding
from mmpola.openmmlab.run.seeding import SampleKey, SeededBatchSampler, SeededDataset, image_digest


class RandomNumbers:
    """A data set whose items are an index and three random numbers."""

    def __init__(self):
        self.metainfo = {'classes': ('a',)}

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(()).item()


def batches(sampler=None, **arguments):
    made = SeededBatchSampler(sampler or DefaultSampler(range(10), seed=3), 4, **arguments)
    made.seed = 7
    return made


def test_draws_are_numbered_over_the_run_and_resume_at_any_step():
    made = batches()
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3)).tolist()
    whole = [key for batch in made for key in batch]
    assert whole == [SampleKey(index, 7, number) for number, index in enumerate(order)]
    made.start(step=1, skip=1)
    assert [key for batch in made for key in batch] == whole[4:]
    made.start(step=3, skip=0)  # the first step of the second epoch
    assert [key.number for key in next(iter(made))] == [12, 13, 14, 15]
    assert [len(batch) for batch in batches(drop_last=True)] == [4, 4]


def test_seeds_have_64_bits():
    """With 32 bits, two of a hundred thousand samples would share their random numbers."""
    seeds = []
    for number in range(20):
        seeding.seed_generators(seeding.SAMPLE, 0, number)
        seeds.append(torch.initial_seed())
    assert max(seeds) > 2**63
    assert len({seed % 2**32 for seed in seeds}) == 20


def test_processes_share_one_numbering(monkeypatch):
    numbers = []
    for rank in range(2):
        monkeypatch.setattr(seeding, 'get_dist_info', lambda rank=rank: (rank, 2))
        numbers += [key.number for batch in batches() for key in batch]
    assert sorted(numbers) == list(range(20))


@pytest.mark.parametrize('sampler', [DefaultSampler, InfiniteSampler])
def test_endless_batches_resume_in_a_later_epoch(sampler):
    def first(number, skip):
        made = batches(sampler(range(10), seed=3), endless=True)
        made.start(skip, skip)
        return [batch for batch, _ in zip(made, range(number), strict=False)]

    whole = first(7, skip=0)
    assert first(3, skip=4) == whole[4:]
    images = [key.index for batch in whole for key in batch]
    assert sorted(images[:10]) == sorted(images[10:20]) == list(range(10))
    assert images[:10] != images[10:20]


def test_a_batch_sampler_of_the_config_decides_on_the_batches():
    made = batches(
        batch_sampler={'type': 'mmdet.AspectRatioBatchSampler'}, sampler=AspectRatios.sampler()
    )
    assert [[key.index for key in batch] for batch in made] == [[0, 2, 4, 6], [1, 3, 5, 7], [9, 8]]


class AspectRatios(RandomNumbers):
    """Even images are wide, odd ones are tall."""

    @classmethod
    def sampler(cls):
        return DefaultSampler(SeededDataset(cls()), shuffle=False)

    def get_data_info(self, index):
        return {'width': 2 - index % 2, 'height': 1 + index % 2}


def test_workers_and_the_order_of_requests_change_no_random_number():
    loaders = [
        DataLoader(
            SeededDataset(RandomNumbers()),
            batch_sampler=batches(),
            num_workers=workers,
            collate_fn=list,
        )
        for workers in (0, 2)
    ]
    one, other = (list(loader) for loader in loaders)
    assert one == other
    data = SeededDataset(RandomNumbers())
    assert data[SampleKey(1, 0, 5)] == data[SampleKey(1, 0, 5)]
    different = [
        data[key][1:] for key in (SampleKey(1, 0, 5), SampleKey(1, 1, 5), SampleKey(1, 0, 6))
    ]
    assert len(set(different)) == 3


def test_a_drawn_data_set_has_the_attributes_of_the_one_inside():
    inner = RandomNumbers()
    for data in (
        made := SeededDataset(inner),
        copy.deepcopy(made),
        pickle.loads(pickle.dumps(made)),
    ):
        assert data.metainfo == {'classes': ('a',)}
        assert len(data) == 10
    made.pipeline = 'another'
    assert inner.pipeline == 'another'


class Files:
    """A data set that names its files."""

    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def get_data_info(self, index):
        return {'img_path': f'{self.names[index]}.jpg'}


def test_data_sets_are_told_apart_by_their_files_wherever_these_are():
    names = [str(number) for number in range(3000)]
    digest = image_digest(SeededDataset(Files(names)))
    assert digest['number'] == 3000
    assert image_digest(Files([f'moved/{name}' for name in names])) == digest
    assert image_digest(Files(['new', *names[:-1]])) != digest
    assert image_digest(RandomNumbers()) == image_digest(RandomNumbers())
    assert image_digest(RandomNumbers())['number'] == 10
