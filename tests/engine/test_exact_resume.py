"""Detectors and segmenters that were interrupted end with exactly the weights of an uninterrupted run."""

import json

import pytest

from tests.helpers.exact import CONFIGS, interrupt_and_resume, small
from tests.helpers.processes import start


@pytest.mark.parametrize('name', CONFIGS)
def test_interrupted_and_resumed_with_two_workers(name, shapes, tmp_path):
    interrupt_and_resume(tmp_path, lambda work: small(shapes, work, name, workers=0 if work.name == 'whole' else 2))


@pytest.mark.slow
def test_interrupted_and_resumed_on_two_processes(shapes, tmp_path):
    status, outputs = start('exact', shapes, tmp_path)
    assert status == [0, 0], outputs
    assert json.loads((tmp_path / 'done.json').read_text()) == list(CONFIGS)
