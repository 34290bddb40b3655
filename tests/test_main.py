"""python -m mmpola: the report on this environment, on damaged ones, and on installations without a clone."""

import re
import sys

import pytest

from mmpola import __main__ as report
from tests.helpers.interpreter import interpret


def test_this_environment_works(capsys):
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
    ('clone', 'torch', 'mmcv'),
    [
        (True, 'bash tools/install.sh', 'bash tools/install.sh'),
        (
            False,
            'pip install --upgrade torch torchvision',
            'pip install "setuptools<82" wheel ninja psutil && pip install --no-build-isolation mmcv==2.1.0',
        ),
    ],
)
def test_versions_that_do_not_work_name_their_fix(clone, torch, mmcv, monkeypatch):
    installed(monkeypatch, mmcv='2.2.0', torch='2.0.1+cpu', mmdet='3.3.0')
    remedies = {finding.what: finding.remedy for finding in report.findings(clone)}
    assert remedies['torch'] == f'needs >= 2.6: {torch}'
    assert remedies['mmcv'] == f'needs >= 2.0.0, < 2.2.0: {mmcv}'
    assert remedies['mmdet'] == ''
    assert remedies['mmengine'].startswith('needs >= 0.10.0, < 1.0.0: ')


def test_openmmlab_is_optional_outside_a_clone(monkeypatch):
    installed(monkeypatch, **WORKING)
    findings = {finding.what: finding for finding in report.findings(clone=False)}
    assert findings['OpenMMLab'].found.startswith('not installed (optional')
    assert not any(finding.remedy for finding in findings.values())
    assert {finding.what for finding in report.findings(clone=True) if finding.remedy} == {
        requirement.name for requirement in report.OPENMMLAB
    }


def test_the_maintained_forks_are_openmmlab_too(monkeypatch):
    forks = dict(requirement.fork for requirement in report.OPENMMLAB)
    installed(monkeypatch, **WORKING, **forks)
    findings = {finding.what: finding for finding in report.findings(clone=True)}
    assert not any(finding.remedy for finding in findings.values())
    assert findings['onedl-mmcv'].found == '2.3.6'
    installed(monkeypatch, **{**WORKING, **forks, 'torch': '2.5', 'onedl-mmcv': '2.3.5'})
    for clone, command in ((True, 'install.sh --forks'), (False, 'pip install --upgrade onedl-mmcv')):
        remedies = {finding.what: finding.remedy for finding in report.findings(clone)}
        assert remedies['onedl-mmcv'].endswith(command)
        assert remedies['torch'].endswith('install.sh --forks' if clone else 'torch torchvision')


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
    assert re.search(rf'!!  attention backends +mmpola.ops cannot be imported: {reason}', result.stdout)
    assert re.search(r'!!  mmdet.models +(OSError|ModuleNotFoundError): ', result.stdout)


def test_the_requirements_are_those_of_the_package(root):
    if sys.version_info < (3, 11):
        pytest.skip('tomllib is in the standard library from Python 3.11 on')
    import tomllib

    project = tomllib.loads((root / 'pyproject.toml').read_text())['project']
    lowest = dict(line.partition('>=')[::2] for line in project['dependencies'])
    expected = {requirement.name: requirement.lowest for requirement in report.NEEDED}
    assert {name: version or '0' for name, version in lowest.items()} == {
        name: version for name, version in expected.items() if name != 'torchvision'
    }
    for requirement in report.OPENMMLAB:
        (pinned,) = (x for x in project['optional-dependencies']['openmmlab'] if x.startswith(f'{requirement.name}=='))
        assert pinned in requirement.pip
