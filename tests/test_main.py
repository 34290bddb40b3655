"""python -m mmpola: the report on this environment and on others, and the commands."""

import re
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from mmcv import ops

from mmpola import __main__, command
from mmpola.openmmlab import install


def test_this_environment_works(capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['mmpola', '--openmmlab'])
    assert __main__.main() == 0
    output = capsys.readouterr().out
    assert re.search('ok  mmcv +mmcv', output)
    assert re.search('ok  attention backends +torch', output)
    assert '!!' not in output


@pytest.fixture
def installed(monkeypatch):
    """A function that lets the environment have these distributions of OpenMMLab and no others."""

    def let_have(**versions):
        def version(name):
            name = name.replace('-', '_')
            if name in ('torch', 'torchvision', 'timm', 'einops'):
                return '1'
            if name not in versions:
                raise install.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(install, 'version', version)

    return let_have


def broken(needs_openmmlab=False):
    """Return the lines that must be fixed, by what they are about."""
    return {
        finding.what: finding for finding in install.findings(needs_openmmlab) if finding.broken
    }


@pytest.mark.parametrize(
    ('arguments', 'status', 'mark'), [([], 0, '--'), (['--openmmlab'], 1, '!!')]
)
def test_an_environment_for_timm(arguments, status, mark, monkeypatch, capsys, installed):
    installed()
    monkeypatch.setattr(sys, 'argv', ['mmpola', *arguments])
    assert __main__.main() == status
    pattern = (
        rf"{mark}  mmdet +not installed \(detection needs it\) +-> pip install -e '.\[openmmlab\]'"
    )
    assert re.search(pattern, capsys.readouterr().out)


def test_the_maintained_forks_are_openmmlab_too(installed):
    installed(
        onedl_mmengine='0.10.12',
        onedl_mmcv='2.3.6',
        onedl_mmdetection='3.5.1',
        onedl_mmsegmentation='1.4.2',
    )
    assert not broken(needs_openmmlab=True)


def test_two_distributions_of_mmcv_are_one_too_many(installed):
    installed(mmcv='2.1.0', mmcv_lite='2.1.0')
    finding = broken()['mmcv']
    assert finding.found.startswith('mmcv and mmcv-lite are the same module')
    assert finding.remedy == 'pip uninstall mmcv mmcv-lite; pip install mmcv-lite==2.1.0'


def test_operators_for_a_cpu_where_torch_finds_a_gpu(monkeypatch):
    monkeypatch.setattr(ops, 'get_compiling_cuda_version', lambda: 'not available')
    assert install.mmcv_problem() is None
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    problem = install.mmcv_problem()
    assert problem.broken
    assert problem.remedy == 'pip uninstall mmcv; pip install mmcv-lite==2.1.0'


def test_a_config_of_the_working_directory_comes_first(tmp_path, monkeypatch):
    called = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        command.runpy, 'run_path', lambda path, run_name: called.append(list(sys.argv))
    )
    monkeypatch.setattr(sys, 'argv', ['mmpola', 'train', 'configs/imagenet_pola_pvt_t.py', '--amp'])
    assert __main__.main() == 0
    (tmp_path / 'configs').mkdir()
    (tmp_path / 'configs' / 'imagenet_pola_pvt_t.py').write_text('')
    sys.argv = ['mmpola', 'train', 'configs/imagenet_pola_pvt_t.py', '--amp']
    assert __main__.main() == 0
    first, second = called
    assert Path(first[1]).is_absolute() and Path(first[1]).is_file()
    assert second[1:] == ['configs/imagenet_pola_pvt_t.py', '--amp']


def test_an_unknown_command_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['mmpola', 'predictt', 'config.py'])
    with pytest.raises(SystemExit) as stopped:
        __main__.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith('mmpola: expected one of train, test, ')


def test_every_command_has_a_script_and_every_script_a_command(root):
    assert {path.name for path in (root / 'tools').glob('*.py')} == {
        script for script, _ in command.SCRIPTS.values()
    }


def test_the_command_is_installed():
    (entry,) = entry_points(group='console_scripts', name='mmpola')
    assert entry.load() is __main__.main
