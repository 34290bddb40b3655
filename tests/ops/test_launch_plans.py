"""How the tokens of a call are split over programs."""

import random

from mmpola.ops.triton.launch import _chunks, useful_splits


def best_of_all(rows, slots, most):
    """Return the first number of chunks that uses 90 % of the slots of its rounds, else the one
    that uses the most.
    """
    first = max(1, min(most, slots // rows))
    last = max(first, min(most, 4 * first + 4))

    def used(chunks):
        return rows * chunks / (slots * -(-rows * chunks // slots))

    return max(range(first, last + 1), key=lambda chunks: min(used(chunks), 0.9))


def test_the_best_split_is_among_the_few_that_are_tried():
    generator = random.Random(0)
    for _ in range(3000):
        rows = round(2 ** generator.uniform(0, 14))
        slots = generator.randint(1, 16) * generator.choice([2, 20, 108, 132])
        most = round(2 ** generator.uniform(0, 12))
        assert _chunks(rows, slots, most) == best_of_all(rows, slots, most), (rows, slots, most)


def test_few_splits_are_tried():
    """A call on a new shape waits for them: of 8,452 possible splits of one row, ten are useful."""
    assert len(useful_splits(rows=1, slots=2112, first=2112, last=8452)) <= 12
