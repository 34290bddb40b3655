"""Throughput over a window of steps."""

from types import SimpleNamespace

import pytest
from mmengine.logging import MessageHub

from mmpola.engine.hooks import ThroughputHook


def test_throughput_is_that_of_the_last_steps():
    hub, hook = MessageHub('throughput'), ThroughputHook(window=2)
    runner = SimpleNamespace(message_hub=hub)
    for seconds, waited, images in ((9.0, 9.0, 1), (1.0, 0.5, 6), (3.0, 0.5, 2)):
        hub.update_scalar('train/time', seconds)
        hub.update_scalar('train/data_time', waited)
        hook.after_train_iter(runner, 0, {'data_samples': [None] * images})
    assert hub.get_scalar('train/images_per_second').current() == 2.0
    assert hub.get_scalar('train/data_share').current() == 0.25


def test_bad_window():
    with pytest.raises(ValueError) as raised:
        ThroughputHook(window=0)
    assert str(raised.value) == 'window: expected a positive integer, got 0'
