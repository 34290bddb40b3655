"""Programs that import mmdet first find the operators in a copy of mmcv-lite."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from mmpola.openmmlab.mmcv import lite as mmcv_lite
from tests.helpers.processes import interpret


@pytest.mark.slow
def test_programs_that_import_mmdet_first(tmp_path):
    """In a copy of the installed mmcv, without `import mmpola`, and after mmpola is uninstalled."""
    installed = Path(find_spec('mmcv').origin).parent
    if list(installed.glob('_ext*.so')):
        pytest.skip('mmcv is compiled in this environment')
    ignored = shutil.ignore_patterns('csrc', '__pycache__', '_ext.py')
    shutil.copytree(installed, tmp_path / 'mmcv', ignore=ignored)
    program = f"""
    sys.path.insert(0, {str(tmp_path)!r})
    from mmdet.apis import init_detector
    from mmdet.registry import MODELS
    from mmcv import ops
    print(type(MODELS.build(dict(type='mmpola.PolaSwin', arch='tiny'))).__name__)
    print(ops.get_compiler_version())
    """
    without = interpret(program)
    assert "No module named 'mmcv._ext'" in without.stderr

    path = tmp_path / 'mmcv' / '_ext.py'
    path.write_text(mmcv_lite.CONTENT)
    result = interpret(program)
    assert result.returncode == 0, result.stderr
    name, compiler = result.stdout.splitlines()[-2:]
    assert name == 'PolaSwin'
    assert compiler.startswith('none: torchvision')

    no_mmpola = {'mmpola': "raise ModuleNotFoundError('no mmpola', name='mmpola')"}
    stale = interpret(program, on_import=no_mmpola).stderr.splitlines()[-1]
    advice = f"mmcv's operators need mmpola: install it again, or delete {path}"
    assert stale == f'ModuleNotFoundError: {advice}'
