"""The sampler yields every image once, in an order that depends on seed and epoch, and can start in the middle."""

import pytest
import torch

from mmpola.engine.draws import Draw, DrawSampler


def sampler(length=10, rank=0, world=1, **arguments):
    """The sampler of process `rank` of `world`."""
    made = DrawSampler(range(length), **{'seed': 3, **arguments})
    made.rank, made.world_size = rank, world
    made.num_samples = -(-length // world)
    made.total_size = made.num_samples * world
    return made


def dealt(world, length=10, epoch=0, **arguments):
    """Draws of all processes in the order of steps."""
    made = [sampler(length, rank, world, **arguments) for rank in range(world)]
    for one in made:
        one.set_epoch(epoch)
    return [draw for step in zip(*made, strict=True) for draw in step]


def test_an_epoch_has_every_image_once_in_an_order_of_seed_and_epoch():
    first, second = dealt(1, epoch=0), dealt(1, epoch=1)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3)).tolist()
    assert first == [Draw(image, 0, 3) for image in order]
    assert sorted(draw.image for draw in second) == list(range(10))
    assert {draw.draw for draw in second} == {1}
    assert [draw.image for draw in second] != order
    assert dealt(1, shuffle=False) == [Draw(image, 0, 3) for image in range(10)]


def test_processes_share_one_order_and_are_padded_with_its_beginning():
    one = dealt(1)
    assert dealt(2) == one
    assert dealt(4) == one + one[:2]


@pytest.mark.parametrize('world', [1, 3])
def test_repeats_go_to_different_processes_with_other_random_numbers(world):
    draws = dealt(world, length=9, epoch=5, repeats=3)
    assert [draw.draw for draw in draws] == [15, 16, 17] * 3
    images = [draw.image for draw in draws]
    assert images[::3] == images[1::3] == images[2::3]
    assert images[::3] == [draw.image for draw in dealt(1, length=9, epoch=5)][:3]


def test_start_skips_the_beginning_of_one_epoch():
    made = sampler(rank=1, world=2)
    whole = list(made)
    made.start = 3
    assert list(made) == whole[3:]
    assert list(made) == whole
    assert len(made) == 5
    made.start = 5
    assert list(made) == []


def test_bad_repeats():
    with pytest.raises(ValueError) as raised:
        sampler(repeats=0)
    assert str(raised.value) == 'repeats: expected an integer from 1, got 0'
