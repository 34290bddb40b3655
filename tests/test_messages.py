"""How a script begins and ends, and how names are listed."""

import pytest

from mmpola.messages import UsageError, counted, first_line, listed, run_main


@pytest.mark.parametrize(
    ('error', 'status', 'line'),
    [
        (UsageError('--out: no'), 2, 'error: --out: no\n'),
        (KeyboardInterrupt(), 130, 'interrupted\n'),
    ],
)
def test_a_mistake_and_ctrl_c_end_a_script_with_one_line(error, status, line, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as stopped:
        run_main(main)
    assert stopped.value.code == status
    assert capsys.readouterr().err == line


def test_other_errors_are_raised():
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: 1 / 0)


def test_parts_of_messages():
    assert [counted(number, 'image') for number in (0, 1, 2)] == ['0 images', '1 image', '2 images']
    assert counted(2000, 'image') == '2,000 images'
    assert listed(range(6)) == '0, 1, 2, 3, 4 and 1 more'
    assert listed(range(6), None) == '0, 1, 2, 3, 4, 5'
    assert first_line(ValueError('one\ntwo')) == 'ValueError: one'
    assert first_line(KeyError()) == 'KeyError'


def test_a_terminal_obeys_no_name():
    """Names come from files and servers, and one line stays one line."""
    assert listed(['a\nerror: b', '\x1b[2J', 'é 字', '\udc80']) == (
        r'a\nerror: b, \x1b[2J, é 字, \udc80'
    )
    assert first_line(OSError('\x1b[31m')) == r'OSError: \x1b[31m'
