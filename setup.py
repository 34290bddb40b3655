"""Add configs, tools and the model index to the package's folder `.mim`, as OpenMMLab does.

A wheel contains copies, an editable installation links into the repository. The metadata is in
pyproject.toml.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CARRIED = ('configs', 'tools', 'model-index.yml')
REPOSITORY_ONLY = ('install.sh', 'quickstart.sh', 'run_tests.sh', 'dev')
"""Scripts that work on the repository itself."""
CACHES = ('__pycache__', '.*')


class BuildWithMim(build_py):
    """build_py that also fills mmpola/.mim."""

    def run(self) -> None:
        super().run()
        mim = (ROOT if self.editable_mode else Path(self.build_lib)) / 'mmpola' / '.mim'
        if mim.exists():  # from an earlier build, perhaps with files that no longer exist
            shutil.rmtree(mim)
        mim.mkdir(parents=True)
        for name in CARRIED:
            if self.editable_mode:
                (mim / name).symlink_to(ROOT / name)
            elif (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name,
                    mim / name,
                    ignore=shutil.ignore_patterns(*REPOSITORY_ONLY, *CACHES),
                )
            else:
                shutil.copy(ROOT / name, mim / name)


setup(cmdclass={'build_py': BuildWithMim})
