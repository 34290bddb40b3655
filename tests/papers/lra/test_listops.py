"""Generated ListOps are those of the official description, and their labels are right."""

from collections import Counter
from random import Random

import pytest

from mmpola.papers.lra.listops import Limits, draw_tree, main, write_listops
from tests.helpers.processes import exit_status
from tests.helpers.refusals import assert_lines, refusal

SMALL = Limits(min_length=20, max_length=200, max_depth=4)


def rows(path):
    header, *lines = path.read_text().splitlines()
    assert header == 'Source\tTarget'
    return [line.split('\t') for line in lines]


def evaluated(source):
    """Evaluate a text with a stack, independently of the generator's trees."""
    stack = [[]]
    for word in source.replace('(', ' ').replace(')', ' ').split():
        if word.startswith('['):
            stack.append([word])
        elif word == ']':
            operator, *values = stack.pop()
            values.sort()
            middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2
            results = {
                '[MIN': values[0],
                '[MAX': values[-1],
                '[MED': middle,
                '[SM': sum(values) % 10,
            }
            stack[-1].append(results[operator])
        else:
            stack[-1].append(int(word))
    ((result,),) = stack
    return result


def length(source):
    return len(source.replace('(', ' ').replace(')', ' ').split())


def depth(source):
    level = deepest = 1
    for word in source.split():
        level += word.startswith('[') - (word == ']')
        deepest = max(deepest, level)
    return deepest


def shares(lists):
    """Return the shares of labels and operators, and the mean length."""
    labels = Counter(target for _, target in lists)
    operators = Counter(word for source, _ in lists for word in source.split() if len(word) > 2)
    return (
        {label: labels[label] / len(lists) for label in '0123456789'},
        {name: number / operators.total() for name, number in operators.items()},
        sum(length(source) for source, _ in lists) / len(lists),
    )


def test_trees_are_written_as_in_the_official_files():
    assert draw_tree(Random(1), Limits(2, 12, 2, 3)) == ('( ( ( ( [MIN 1 ) 7 ) 7 ) ] )', 1)
    assert draw_tree(Random(0), Limits(2, 12, 2, 3)) is None


def test_every_tree_is_new_within_the_limits_and_rightly_labelled(tmp_path):
    write_listops(tmp_path / 'lists', train=150, dev=20, test=30, limits=SMALL)
    splits = [rows(tmp_path / 'lists' / f'basic_{split}.tsv') for split in ('train', 'val', 'test')]
    lists = [row for split in splits for row in split]
    assert list(map(len, splits)) == [150, 20, 30]
    assert len({source for source, _ in lists}) == 200
    assert all(evaluated(source) == int(target) for source, target in lists)
    assert all(20 < length(source) < 200 for source, _ in lists)
    assert max(depth(source) for source, _ in lists) == 4


def test_the_seed_decides_the_files(tmp_path):
    for name, seed in (('one', 3), ('two', 3), ('other', 4)):
        write_listops(tmp_path / name, 30, 5, 5, SMALL, seed)
    one, two, other = (
        (tmp_path / name / 'basic_train.tsv').read_text() for name in ('one', 'two', 'other')
    )
    assert one == two != other


@pytest.mark.real_data
def test_the_statistics_are_those_of_the_sample(real_data, tmp_path):
    """The tolerances are four standard errors of the sample's 300 trees."""
    write_listops(tmp_path / 'lists', 400, 100, 100, seed=1)
    sample = real_data / 'lra_mini' / 'listops-1000'
    found, expected = (
        shares(
            [
                row
                for split in ('train', 'val', 'test')
                for row in rows(folder / f'basic_{split}.tsv')
            ]
        )
        for folder in (tmp_path / 'lists', sample)
    )
    for label, share in expected[0].items():
        assert abs(found[0][label] - share) < 4 * (share * (1 - share) / 300) ** 0.5 + 0.01
    assert found[1] == pytest.approx(dict.fromkeys(('[MIN', '[MAX', '[MED', '[SM'), 0.25), abs=0.01)
    assert expected[1] == pytest.approx(found[1], abs=0.01)
    deviation = 400  # of lengths from 500 to 2000, about
    assert abs(found[2] - expected[2]) < 4 * deviation / 300**0.5


def test_impossible_limits_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr('mmpola.papers.lra.listops.MAX_FRUITLESS', 2)
    message = refusal(write_listops, tmp_path / 'lists', 20, 1, 1, Limits(0, 5, 1))
    assert_lines([message], ('ListOps: ', 'got 10 ', ' draws'))
    assert list(tmp_path.iterdir()) == []


def test_the_command_leaves_other_files_alone(tmp_path, capsys):
    (tmp_path / 'mine').write_text('')
    assert exit_status(main, 'listops', tmp_path, '--train', 1) == 2
    error = capsys.readouterr().err
    assert error.startswith(f'error: {tmp_path}: expected a new or empty folder')
    assert error.count('\n') == 1
    small = '--train 3 --dev 1 --test 1 --min-length 5 --max-length 50 --max-depth 3'
    assert exit_status(main, 'listops', tmp_path / 'new', *small.split()) == 0
    assert [len(rows(path)) for path in sorted((tmp_path / 'new').iterdir())] == [1, 3, 1]
