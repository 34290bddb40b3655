"""The files that GitHub and pre-commit read agree with those that the project itself reads."""

from importlib.metadata import metadata

import pytest
import yaml

from mmpola.openmmlab.install import versions_of


def pinned(path):
    lines = [line.split('#')[0].split(';')[0].strip() for line in path.read_text().splitlines()]
    return {line for line in lines if '==' in line}


def test_pre_commit_has_the_versions_of_the_project(root):
    config = yaml.safe_load((root / '.pre-commit-config.yaml').read_text())
    hooks = [hook for repository in config['repos'] for hook in repository['hooks']]
    used = {package for hook in hooks for package in hook['additional_dependencies']}
    assert len(hooks) == 4
    assert used <= pinned(root / 'requirements-dev.txt')


@pytest.mark.parametrize('package', ['torch', 'timm'])
def test_the_oldest_versions_that_are_promised_are_tested(root, package):
    workflow = yaml.safe_load((root / '.github' / 'workflows' / 'ci.yml').read_text())
    (oldest,) = [
        job
        for job in workflow['jobs']['checks']['strategy']['matrix']['include']
        if job['job'] == 'oldest'
    ]
    minimum = versions_of(package).removeprefix('>=')
    (installed,) = [word for word in oldest['versions'].split() if word.startswith(f'{package}==')]
    assert f'{installed}.'.startswith(f'{package}=={minimum}.')
    assert metadata('mmpola')['Requires-Python'] == f'>={oldest["python"]}'
