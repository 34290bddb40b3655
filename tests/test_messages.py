"""How a script ends."""

import pytest

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
