"""tools/dev/build_docs.sh: it needs an environment, and pages load nothing from the network."""

import shutil
import subprocess

import pytest


@pytest.fixture
def build(root, tmp_path):
    """A function that runs the script, with a stand-in for Sphinx if it gets a page."""
    (tmp_path / 'tools' / 'dev').mkdir(parents=True)
    shutil.copy(root / 'tools' / 'dev' / 'build_docs.sh', tmp_path / 'tools' / 'dev')

    def run(page=None):
        if page is not None:
            (tmp_path / 'docs' / '_build' / 'html').mkdir(parents=True, exist_ok=True)
            (tmp_path / 'docs' / '_build' / 'html' / 'index.html').write_text(page)
            (tmp_path / '.venv' / 'bin').mkdir(parents=True, exist_ok=True)
            (tmp_path / '.venv' / 'bin' / 'python').write_text('#!/bin/sh\n')
            (tmp_path / '.venv' / 'bin' / 'python').chmod(0o755)
        command = ['bash', str(tmp_path / 'tools' / 'dev' / 'build_docs.sh')]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_without_an_environment_it_says_how_to_create_one(build):
    result = build()
    assert (result.returncode, result.stdout) == (2, '')
    (line,) = result.stderr.splitlines()
    assert line.startswith('error: .venv: ') and line.endswith('bash tools/install.sh --dev')


@pytest.mark.parametrize(
    ('address', 'status'), [('_static/mathjax.js', 0), ('https://cdn.example/mathjax.js', 1)]
)
def test_a_page_may_load_nothing_from_the_network(build, address, status):
    result = build(
        f'<script defer="defer" src="{address}"></script><a href="https://arxiv.org">paper</a>'
    )
    assert result.returncode == status
    assert (address in result.stderr) == (status == 1)
