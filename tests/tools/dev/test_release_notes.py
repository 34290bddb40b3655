"""A release is refused if the files of the repository name different versions."""

import shutil

import pytest

import mmpola
from tools.dev.release_notes import release_notes

FILES = ('mmpola/__init__.py', 'CITATION.cff', 'CHANGELOG.md')


@pytest.fixture
def repository(root, tmp_path):
    (tmp_path / 'mmpola').mkdir()
    for name in FILES:
        shutil.copy(root / name, tmp_path / name)
    return tmp_path


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_this_version_can_be_released_once_its_heading_has_a_date(repository):
    version = mmpola.__version__
    changelog = repository / 'CHANGELOG.md'
    assert 'PolaFormer' in release_notes(repository, version, draft=True)
    replace(changelog, f'## {version} (not yet released)', f'## {version} (2026-12-01)')
    replace(changelog, '# Changelog\n', '# Changelog\n\n## 0.2.0 (2027-01-01)\n\nLater.\n')
    notes = release_notes(repository, version)
    assert notes.startswith('The first version.')
    assert 'Later.' not in notes


@pytest.mark.parametrize('name', FILES)
def test_a_file_of_another_version_is_named(repository, name):
    version = mmpola.__version__
    replace(repository / name, version, '9.9.9')
    with pytest.raises(SystemExit, match=name):
        release_notes(repository, version, draft=True)


def test_an_undated_changelog_is_refused(repository):
    with pytest.raises(SystemExit, match='YYYY-MM-DD'):
        release_notes(repository, mmpola.__version__)
