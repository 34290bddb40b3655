"""`mmpola operators`: the file in mmcv-lite's folder, in copies of mmcv-lite."""

import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from mmpola.openmmlab import install
from mmpola.openmmlab.mmcv import lite as mmcv_lite
from tests.helpers.processes import run_script
from tests.helpers.refusals import refusal


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that Python searches first, with an empty mmcv."""
    (tmp_path / 'mmcv').mkdir()
    (tmp_path / 'mmcv' / '__init__.py').touch()
    for name in list(sys.modules):
        if name.partition('.')[0] == 'mmcv':
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def files(site):
    """Return the content of every file, by its path in the folder."""
    paths = [path for path in site.rglob('*') if path.is_file()]
    return {str(path.relative_to(site)): path.read_bytes() for path in paths}


def test_it_is_written_and_removed(site, capsys):
    before = files(site)
    path = site / 'mmcv' / '_ext.py'
    finding = install._operators()
    assert finding.remedy == 'mmpola operators' and not finding.broken
    for _ in range(2):  # again: the same
        assert run_script('operators') == 0
        assert files(site) == {**before, 'mmcv/_ext.py': mmcv_lite.CONTENT.encode()}
    assert install._operators().found == 'found by every program (_ext.py)'
    assert not install._operators().remedy
    assert run_script('operators', '--remove') == 0
    assert files(site) == before
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"wrote {path}: every program here finds mmcv's operators",
        f'removed {path}',
    ]
    assert refusal(mmcv_lite.remove_operators).startswith(f'{path}: no such file')


def test_a_compiled_mmcv_is_left_alone(site):
    compiled = site / 'mmcv' / f'_ext{EXTENSION_SUFFIXES[0]}'
    compiled.touch()
    before = files(site)
    assert refusal(mmcv_lite.add_operators).startswith(f'mmcv is compiled here ({compiled})')
    assert files(site) == before
    (site / 'mmcv' / '_ext.py').write_text(mmcv_lite.CONTENT)  # of an earlier mmcv-lite
    assert install.mmcv_extension() == compiled
    mmcv_lite.remove_operators()
    assert files(site) == before


@pytest.mark.parametrize('content', [b'own = True\n', b'\xff\xfe\x00'], ids=['text', 'no text'])
def test_the_file_of_somebody_else_is_left_alone(content, site):
    path = site / 'mmcv' / '_ext.py'
    path.write_bytes(content)
    for function in (mmcv_lite.add_operators, mmcv_lite.remove_operators):
        assert refusal(function).startswith(f'{path}: expected a file of mmpola, got another')
    assert path.read_bytes() == content


def test_nothing_is_left_in_a_folder_that_is_not_writable(site, monkeypatch):
    def write(path, content):
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr(mmcv_lite, 'write_atomically', write)
    before = files(site)
    message = refusal(mmcv_lite.add_operators)
    assert message.startswith(f'{site / "mmcv"}: Permission denied: run this as its owner')
    assert files(site) == before


@pytest.mark.parametrize('left', [False, True])
def test_no_mmcv(left, tmp_path, monkeypatch):
    """pip leaves a folder with a file that it does not know."""
    if left:
        (tmp_path / 'mmcv').mkdir()
        (tmp_path / 'mmcv' / '_ext.py').write_text(mmcv_lite.CONTENT)
    monkeypatch.setattr(sys, 'path', [str(tmp_path)])
    monkeypatch.delitem(sys.modules, 'mmcv', raising=False)
    message = refusal(mmcv_lite.add_operators)
    assert message == "mmcv is not installed: pip install -e '.[openmmlab]'"
