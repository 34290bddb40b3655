"""python -m mmpola: the report on this environment and on damaged ones, and the commands."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from mmpola import __main__ as report
from mmpola import commands
from tests.helpers.processes import interpret


def test_this_environment_works(capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['mmpola', '--openmmlab'])
    assert report.main() == 0
    output = capsys.readouterr().out
    assert 'ok  mmcv.ops' in output
    assert re.search('ok  attention backends +torch', output)
    assert '!!' not in output


WORKING = {'torch': '2.11.0', 'torchvision': '0.26.0', 'timm': '1.0.31', 'einops': '0.8'}


def installed(monkeypatch, **versions):
    """Let the environment have these distributions and no others."""

    def version(name):
        if name not in versions:
            raise report.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(report.metadata, 'version', version)


@pytest.mark.parametrize(
    ('by_installer', 'torch', 'mmcv'),
    [
        (True, 'bash tools/install.sh', 'bash tools/install.sh'),
        (
            False,
            'pip install --upgrade torch torchvision',
            'pip install "setuptools<82" wheel ninja psutil && '
            'pip install --no-build-isolation mmcv==2.1.0',
        ),
    ],
)
def test_versions_that_do_not_work_name_their_fix(by_installer, torch, mmcv, monkeypatch):
    installed(monkeypatch, mmcv='2.2.0', torch='2.0.1+cpu', mmdet='3.3.0')
    remedies = {
        finding.what: finding.remedy for finding in report.findings(by_installer, all_needed=False)
    }
    assert remedies['torch'] == f'needs >= 2.6: {torch}'
    assert remedies['mmcv'] == f'needs >= 2.0.0, < 2.2.0: {mmcv}'
    assert remedies['mmdet'] == ''
    assert remedies['mmengine'].startswith('needs >= 0.10.0, < 1.0.0: ')


def broken(all_needed=False):
    """Return what must be mended in an environment that tools/install.sh has not made."""
    found = report.findings(by_installer=False, all_needed=all_needed)
    return [finding.what for finding in found if finding.mark == report.BROKEN_MARK]


def test_packages_of_openmmlab_are_needed_where_others_are_installed_or_on_request(monkeypatch):
    installed(monkeypatch, **WORKING)
    assert broken() == []
    assert broken(all_needed=True) == ['mmengine', 'mmcv', 'mmdet', 'mmsegmentation']
    installed(monkeypatch, **WORKING, mmengine='0.10.7')
    assert broken() == []
    installed(monkeypatch, **WORKING, mmdet='3.3.0')
    assert broken() == ['mmengine', 'mmcv']
    installed(monkeypatch, **WORKING, mmengine='0.9.0')
    assert broken() == ['mmengine']


@pytest.mark.parametrize(('torch', 'expected'), [('2.5.1', ['torch']), ('2.6.0', [])])
def test_the_lowest_torch(torch, expected, monkeypatch):
    installed(monkeypatch, **{**WORKING, 'torch': torch})
    assert broken() == expected


@pytest.mark.parametrize(
    ('arguments', 'status', 'mark'), [([], 0, '--'), (['--openmmlab'], 1, '!!')]
)
def test_an_environment_for_timm_alone(arguments, status, mark, tmp_path, monkeypatch, capsys):
    installed(monkeypatch, **WORKING)
    monkeypatch.setattr(sys, 'argv', ['mmpola', *arguments])
    # The installer has not made this environment.
    monkeypatch.setattr(sys, 'prefix', str(tmp_path))
    assert report.main() == status
    output = capsys.readouterr().out
    assert re.search(
        f'{mark}  mmdet +not installed .*detection.* -> .*pip install mmdet==3.3.0', output
    )
    assert 'install.sh' not in output


def test_the_maintained_forks_are_openmmlab_too(monkeypatch):
    forks = dict(requirement.fork for requirement in report.OPENMMLAB)
    installed(monkeypatch, **WORKING, **forks)
    findings = {
        finding.what: finding for finding in report.findings(by_installer=True, all_needed=True)
    }
    assert not any(finding.remedy for finding in findings.values())
    assert findings['onedl-mmcv'].found == '2.3.6'
    installed(monkeypatch, **{**WORKING, **forks, 'torch': '2.5', 'onedl-mmcv': '2.3.5'})
    for by_installer, command in (
        (True, 'install.sh --forks'),
        (False, 'pip install --upgrade onedl-mmcv'),
    ):
        remedies = {
            finding.what: finding.remedy
            for finding in report.findings(by_installer, all_needed=False)
        }
        assert remedies['onedl-mmcv'].endswith(command)
        assert remedies['torch'].endswith(
            'install.sh --forks' if by_installer else 'torch torchvision'
        )


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
    reason = 'OSError: libcudart.so.13: cannot open'
    assert re.search(rf'!!  GPU +unknown, torch does not work: {reason}', result.stdout)
    assert re.search(
        rf'!!  attention backends +mmpola.ops cannot be imported: {reason}', result.stdout
    )
    assert re.search(r'!!  mmdet.models +(OSError|ModuleNotFoundError): ', result.stdout)


def test_the_requirements_are_those_of_the_package(root):
    if sys.version_info < (3, 11):
        pytest.skip('tomllib is in the standard library from Python 3.11 on')
    import tomllib

    project = tomllib.loads((root / 'pyproject.toml').read_text())['project']
    lowest = dict(line.partition('>=')[::2] for line in project['dependencies'])
    expected = {requirement.name: requirement.lowest for requirement in report.REQUIRED}
    assert {name: version or '0' for name, version in lowest.items()} == {
        name: version for name, version in expected.items() if name != 'torchvision'
    }
    for requirement in report.OPENMMLAB:
        (pinned,) = (
            x
            for x in project['optional-dependencies']['openmmlab']
            if x.startswith(f'{requirement.name}==')
        )
        assert pinned in requirement.pip


def test_a_command_is_its_script_with_the_configs_of_mmpola(tmp_path):
    command = [sys.executable, '-m', 'mmpola', 'flops', 'configs/imagenet_pola_pvt_t.py']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'GMACs' in done.stdout


def test_a_config_of_the_working_directory_comes_first(tmp_path, monkeypatch):
    called = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        commands.runpy, 'run_path', lambda path, run_name: called.append(list(sys.argv))
    )
    monkeypatch.setattr(sys, 'argv', ['mmpola', 'train', 'configs/imagenet_pola_pvt_t.py', '--amp'])
    assert report.main() == 0
    (tmp_path / 'configs').mkdir()
    (tmp_path / 'configs' / 'imagenet_pola_pvt_t.py').write_text('')
    sys.argv = ['mmpola', 'train', 'configs/imagenet_pola_pvt_t.py', '--amp']
    assert report.main() == 0
    first, second = called
    assert Path(first[1]).is_absolute() and Path(first[1]).is_file()
    assert second[1:] == ['configs/imagenet_pola_pvt_t.py', '--amp']


def test_an_unknown_command_is_refused_with_the_similar_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['mmpola', 'predictt', 'config.py'])
    with pytest.raises(SystemExit) as stopped:
        report.main()
    assert stopped.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith('mmpola: expected one of train, test, ') and line.endswith(
        'got predictt; did you mean predict?\n'
    )


def test_every_command_has_a_script_and_every_script_a_command(root):
    assert {path.name for path in (root / 'tools').glob('*.py')} == set(commands.SCRIPTS.values())


def test_the_command_is_installed():
    (entry,) = entry_points(group='console_scripts', name='mmpola')
    assert entry.load() is report.main
