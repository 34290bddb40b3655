"""Every script sets the variables of OpenMP first."""

import ast

from tests.helpers import ROOT

IMPORTS = (ast.Import, ast.ImportFrom)
SCRIPTS = sorted(path for path in (ROOT / 'tools').rglob('*.py'))


def test_every_script_imports_it_before_anything_else():
    for script in SCRIPTS:
        text = script.read_text()
        assert 'run_main(main)' in text, script
        imports = [ast.unparse(node) for node in ast.parse(text).body if isinstance(node, IMPORTS)]
        if imports[0] == 'from __future__ import annotations':
            del imports[0]
        assert imports[0] == 'import mmpola.script', script
