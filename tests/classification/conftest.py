"""Generated images for the training tests; every test leaves the signals as they were."""

import signal

import pytest
from small_training import write_images


@pytest.fixture(autouse=True)
def _signals():
    """A run that ends in an error leaves PreemptionHook listening."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope='session')
def colours(tmp_path_factory):
    """24 training and 9 validation images in three class folders; not to be written to."""
    return write_images(tmp_path_factory.mktemp('colours'))
