"""Versions and extras: pyproject.toml has them, and what repeats them says the same."""

import re
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import mmpola
from mmpola.openmmlab.install import extra_of, install_command, versions_of

tomllib = pytest.importorskip('tomllib')  # Python 3.11

PINNED = re.compile(r'(mmengine|mmcv-lite|mmdet|mmsegmentation)(?:==| )(\d+\.\d+\.\d+)')
"""A version of a package of OpenMMLab in a page."""


@pytest.fixture(scope='module')
def settings(root):
    return tomllib.loads((root / 'pyproject.toml').read_text())


def test_they_are_read_from_the_installed_package():
    """As packaging reads its metadata; the first extra that requires a package counts."""
    found = {}
    for line in requires('mmpola'):
        requirement = Requirement(line)
        extra = re.search(r'extra == "(\w+)"', str(requirement.marker))
        found.setdefault(requirement.name, (requirement.specifier, extra[1] if extra else ''))
    del found['mmpola']  # an extra of its own
    for name, (versions, extra) in found.items():
        assert SpecifierSet(versions_of(name)) == versions
        assert extra_of(name) == extra
    assert versions_of('mmcv-lite') == '==2.1.0'
    assert versions_of('einops') == versions_of('none-such') == ''
    assert [extra_of(name) for name in ('mmseg', 'mmdet', 'onnx')] == ['openmmlab'] * 2 + ['export']
    assert extra_of('torch') == extra_of('none-such') == ''
    assert install_command('export') == "pip install -e '.[export]'"


def test_the_tested_set_is_what_the_extras_ask_for(settings, root):
    pins = {}
    for path in root.glob('requirements*.txt'):
        for line in path.read_text().splitlines():
            if re.match(r'[a-z]', line):
                pin = Requirement(line.partition('#')[0])
                pins[pin.name] = str(pin.specifier).removeprefix('==')
    wanted = [*settings['build-system']['requires'], *settings['project']['dependencies']]
    for lines in settings['project']['optional-dependencies'].values():
        wanted += lines
    for line in wanted:
        requirement = Requirement(line)
        if requirement.name in pins:
            assert requirement.specifier.contains(pins[requirement.name]), line


def test_pages_name_the_versions_that_are_installed(root):
    pages = [*root.glob('*.md'), *(root / 'docs').rglob('*.md')]
    found = [pair for page in pages for pair in PINNED.findall(page.read_text())]
    assert found
    for name, version in found:
        assert versions_of(name) == f'=={version}', (name, version)


def test_the_readme_names_this_version_of_mmpola(root):
    """Other files: tests/tools/dev/test_release_notes.py."""
    assert f'**Latest: {mmpola.__version__}' in (root / 'README.md').read_text()
