"""python -m mmpola in new processes: the report on a damaged environment, and the commands."""

import re
import subprocess
import sys

import pytest

from tests.helpers.processes import interpret

SCRIPT = 'import runpy; runpy.run_module("mmpola", run_name="__main__")'


def test_usage_is_that_of_what_was_typed():
    result = interpret(SCRIPT, 'flops', '-h')
    assert (result.returncode, result.stdout[:19]) == (0, 'usage: mmpola flops')


@pytest.mark.parametrize('code', [SCRIPT, 'import runpy; runpy.run_path("tools/train.py")'])
def test_a_config_that_does_not_exist_is_named_before_torch_is_imported(code):
    if 'tools' in code:
        code = 'import sys; sys.argv[0] = "tools/train.py"; ' + code
        arguments = []
    else:
        arguments = ['train']
    refuse = "raise AssertionError('imported')"
    name = 'configs/mask_rcnn_pola_swin_t1x.py'
    result = interpret(code, *arguments, name, on_import={'torch': refuse, 'mmengine': refuse})
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f'error: {name}: no such config file; did you mean ')
    assert 'configs/mask_rcnn_pola_swin_t_1x.py' in line


@pytest.mark.slow
def test_it_runs_where_torch_is_broken_and_mmengine_missing():
    result = interpret(
        'from mmpola.__main__ import main; sys.exit(main())',
        on_import={
            'torch': "raise OSError('libcudart.so.13: cannot open')",
            'mmengine': "raise ModuleNotFoundError('no mmengine')",
        },
    )
    assert result.returncode == 1
    assert 'Traceback' not in result.stderr
    reason = r"OSError\('libcudart.so.13: cannot open'\)"
    assert re.search(rf'!!  torch .*{reason}', result.stdout)
    assert re.search(rf'!!  attention +cannot be imported: {reason}', result.stdout)
    assert re.search('!!  mmdet .*(OSError|ModuleNotFoundError)', result.stdout)


def test_a_command_is_its_script_with_the_configs_of_mmpola(tmp_path):
    command = [sys.executable, '-m', 'mmpola', 'flops', 'configs/imagenet_pola_pvt_t.py']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'GMACs' in done.stdout
