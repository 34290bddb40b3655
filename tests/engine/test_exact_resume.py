"""Detectors and segmenters end with the same bits whether they were interrupted or not.

tests/engine/test_two_processes.py does the same on two processes.
"""

import pytest

from tests.helpers.training import CONFIGS, interrupt_and_resume, small

pytestmark = pytest.mark.usefixtures('unformatted_configs')


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'step'), CONFIGS.items())
def test_interrupted_and_resumed_with_two_workers(name, step, shapes, tmp_path):
    def config(work):
        return small(shapes, work, name, workers=0 if work.name == 'whole' else 2)

    interrupt_and_resume(tmp_path, step, config)
