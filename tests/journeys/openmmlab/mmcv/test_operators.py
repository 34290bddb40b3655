"""A compiled mmcv keeps its own operators."""

import subprocess
import sys

import pytest
from mmcv import ops

pytestmark = pytest.mark.skipif(
    not ops.get_compiler_version().startswith('none'),
    reason='mmcv is compiled in this environment',
)


@pytest.mark.slow
def test_a_compiled_module_wins(tmp_path):
    (tmp_path / 'mmcv').mkdir()
    (tmp_path / 'mmcv' / '__init__.py').touch()
    (tmp_path / 'mmcv' / '_ext.py').write_text('compiled = True\n')
    code = 'import mmpola, mmcv._ext; print(mmcv._ext.compiled)'
    command = [sys.executable, '-c', code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == 'True\n'
