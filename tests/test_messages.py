"""How a script begins and ends, and how names are printed and suggested."""

import pytest
from mmengine.config import Config

from mmpola.messages import (
    UsageError,
    counted,
    first_line,
    listed,
    printable,
    run_main,
    suggestion,
)


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


def test_terminal_escapes_in_a_mistake_are_printed_as_text(capsys):
    def main():
        raise UsageError('\x1b[2J.jpg: no\nsecond line')

    with pytest.raises(SystemExit):
        run_main(main)
    assert capsys.readouterr().err == 'error: \\x1b[2J.jpg: no\nsecond line\n'


def test_nouns_are_counted():
    assert [counted(number, 'image') for number in (0, 1, 2)] == ['0 images', '1 image', '2 images']


def test_ctrl_c_that_mmengine_takes_for_an_error_of_the_config(monkeypatch, capsys):
    """It formats the config while the Runner is built, and catches everything."""

    def formatting(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr('mmengine.config.config.FormatCode', formatting)
    with pytest.raises(SystemExit) as stopped:
        run_main(lambda: print(Config({'a': 1}).pretty_text))
    assert stopped.value.code == 130
    assert capsys.readouterr().err == 'interrupted\n'
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: 1 / 0)


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        ('stages.0.blocks.1', 'stages.0.blocks.1'),
        ('Straße 猫 [3, 4]', 'Straße 猫 [3, 4]'),
        ('a\x1b[2Jb', r'a\x1b[2Jb'),
        ('a\r\nb\tc', r'a\r\nb\tc'),
        ('a\x9b31mb', r'a\x9b31mb'),
        ('a\u202egpj.exe', r'a\u202egpj.exe'),
        ('a\u2028b', r'a\u2028b'),
        ('a\udcffb', r'a\udcffb'),
        (3, '3'),
    ],
)
def test_control_characters_of_names_are_printed_as_escapes(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown
    assert listed([text, 'x']) == f'{shown}, x'
    assert '\x1b' not in first_line(ValueError('a\x1b[2J'))


@pytest.mark.parametrize(
    ('name', 'meant'),
    [
        ('pola_swin_tinny', 'pola_swin_tiny'),
        ('POLA_SWIN_TINY', 'pola_swin_tiny'),
        ('adamw', 'AdamW'),
        ('resnet50', None),
    ],
)
def test_the_most_similar_name_is_suggested_whatever_its_case(name, meant):
    names = ('pola_swin_tiny', 'pola_swin_small', 'AdamW')
    assert suggestion(name, names) == (f'; did you mean {meant}?' if meant else '')


def test_names_that_differ_by_case_alone_are_suggested_in_their_order():
    assert suggestion('Name', ('NAME', 'name')) == '; did you mean NAME?'
