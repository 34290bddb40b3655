"""How a script begins and ends."""

import gc

import pytest
from mmengine.config import Config

from mmpola.messages import UsageError, run_main


@pytest.mark.parametrize(
    ('error', 'status', 'line'),
    [(UsageError('--out: no'), 2, 'error: --out: no\n'), (KeyboardInterrupt(), 130, 'interrupted\n')],
)
def test_a_mistake_and_ctrl_c_end_a_script_with_one_line(error, status, line, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as stopped:
        run_main(main)
    assert stopped.value.code == status
    assert capsys.readouterr().err == line


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


def test_garbage_is_collected_again_once_a_script_has_imported_everything(monkeypatch):
    """`mmpola.script` stops that for the imports; what they have created is exempt from then on."""
    frozen = []
    monkeypatch.setattr(gc, 'freeze', lambda: frozen.append(True))
    gc.disable()
    enabled = []
    run_main(lambda: enabled.append(gc.isenabled()))
    run_main(lambda: enabled.append(gc.isenabled()))
    assert (enabled, frozen) == ([True, True], [True])
