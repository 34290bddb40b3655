"""The page of tools/explore.py is served, on this machine only."""

import importlib.util
import re
import signal
from urllib.request import urlopen

import pytest


@pytest.mark.slow
def test_the_page_is_served_here_only(classifier, write_checkpoint, start_tool, tmp_path):
    if importlib.util.find_spec('gradio') is None:
        pytest.skip('gradio, which serves the page, is missing')
    checkpoint = write_checkpoint(classifier, tmp_path / 'random.pth')
    process = start_tool('explore.py', classifier, checkpoint)
    for line in process.stdout:
        if address := re.search(r'http://127\.0\.0\.1:\d+', line):
            break
    with urlopen(address[0]) as page:
        assert 'What the attention of small reads' in page.read().decode()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
