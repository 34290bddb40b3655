"""Fixtures that several folders of tests use."""

import errno
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch.utils.data import DataLoader

from tests.helpers import ROOT
from tests.helpers.configs import (
    TINY,
    TINY_SEGMENTATION,
    leave_configs_unformatted,
    remember_packages,
)
from tests.helpers.processes import environment
from tests.helpers.training import forget_runs, small_config, write_images

GOLDEN = ROOT / 'tests' / 'golden'


def pytest_addoption(parser):
    parser.addoption('--by-hand', action='store_true', help='run the tests marked by_hand too')


def pytest_collection_modifyitems(config, items):
    """Leave out tests marked by_hand. Run files with slow tests first, so that no process ends a
    run with a long one.
    """
    if not config.getoption('--by-hand'):
        by_hand = [item for item in items if item.get_closest_marker('by_hand')]
        config.hook.pytest_deselected(items=by_hand)
        items[:] = [item for item in items if item not in by_hand]
    slow = {item.path for item in items if item.get_closest_marker('slow')}
    items.sort(key=lambda item: item.path not in slow)


gc.disable()  # while tests are imported


def pytest_collection_finish():
    """Exempt imports from garbage collection, which took a fifth of the time of short runs."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope='module')
def _freeze():
    """Exempt what a test file leaves, too: MMEngine collects garbage for every data set."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _forget_runs():
    yield
    forget_runs()


def pytest_runtest_setup():
    """Handle signals as in a terminal.

    nohup or a shell may ignore some, and a training run that fails leaves its handlers.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='session', autouse=True)
def _remember_packages():
    with pytest.MonkeyPatch.context() as patch:
        remember_packages(patch)
        yield


@pytest.fixture(scope='module')
def undrawn_curves():
    """Let training runs draw no curves and no mistakes, which takes a third of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmpola.openmmlab.screen.screen.draw', lambda runner: None)
        patch.setattr(
            'mmpola.openmmlab.results.mistakes.MistakesHook._draw', lambda hook, folder: None
        )
        yield patch


@pytest.fixture(scope='module')
def drawn_curves(undrawn_curves):
    """Let the training runs of a module draw curves and mistakes all the same."""
    undrawn_curves.undo()


@pytest.fixture(scope='module')
def unformatted_configs(undrawn_curves):
    """Let MMEngine write configs without formatting them, and draw no curves, in modules that start
    many runs.

    All other tests run MMEngine and mmpola as they are.
    """
    with pytest.MonkeyPatch.context() as patch:
        leave_configs_unformatted(patch)
        yield


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _data_workers(monkeypatch):
    """End data workers with their test.

    An iterator that is collected as garbage finds its queues closed, and waits for ten seconds for
    workers that it cannot tell to end.
    """
    loaders = []
    start = DataLoader._get_iterator

    def start_and_remember(loader):
        loaders.append(loader)
        return start(loader)

    monkeypatch.setattr(DataLoader, '_get_iterator', start_and_remember)
    yield
    for loader in loaders:
        iterator = loader._iterator
        loader._iterator = None
        if hasattr(iterator, '_shutdown_workers'):
            iterator._shutdown_workers()


@pytest.fixture(scope='session')
def root():
    """The repository's folder."""
    return ROOT


@pytest.fixture(scope='session')
def real_data():
    """The folder with coco_mini, bccd, ade20k_mini, imagenet_mini and lra_mini."""
    folder = os.environ.get('MMPOLA_REAL_DATA')
    if not folder:
        pytest.skip('MMPOLA_REAL_DATA is not set: no real data to test on')
    return Path(folder)


@pytest.fixture(scope='session')
def shapes(tmp_path_factory):
    """A small generated data set: 12 training and 4 validation scenes of 96 x 80 pixels."""
    from mmpola.openmmlab.shapes import write_dataset

    folder = tmp_path_factory.mktemp('generated') / 'shapes'
    # This seed gives crowds in validation only.
    write_dataset(folder, images=12, val_images=4, size=(96, 80), seed=175)
    return folder


@pytest.fixture
def golden():
    """A function that returns the tensors of tests/golden/NAME.pt."""
    return lambda name: torch.load(GOLDEN / f'{name}.pt', weights_only=True)


@pytest.fixture(scope='session')
def colours(tmp_path_factory):
    """24 training and 9 validation images in three class folders; tests must not change them."""
    return write_images(tmp_path_factory.mktemp('colours'))


@pytest.fixture
def tiny_config(root, shapes, tmp_path):
    """The quick start's config with a tiny backbone: 3 epochs of 6 steps on 12 scenes."""
    base = str(root / 'configs' / 'mask_rcnn_pola_swin_shapes.py')
    path = tmp_path / 'tiny.py'
    path.write_text(TINY.format(base=base, data=f'{shapes}/coco/'))
    return path


@pytest.fixture
def tiny_segmentation(root, shapes, tmp_path):
    """Semantic FPN on a tiny Pola-PVT, for the label maps of the generated scenes."""
    base = str(root / 'configs' / 'semantic_fpn_pola_pvt_t_40k.py')
    path = tmp_path / 'tiny_segmentation.py'
    path.write_text(TINY_SEGMENTATION.format(base=base, data=f'{shapes}/ade'))
    return path


@pytest.fixture
def classifier(colours, tmp_path):
    """A config of a small classifier, which reads the centre of an image."""
    path = tmp_path / 'small.py'
    small_config(colours, tmp_path / 'work').dump(path)
    return path


@pytest.fixture
def warned(monkeypatch):
    """The warnings that MMEngine's logger gets."""
    lines = []
    monkeypatch.setattr(
        'mmengine.logging.MMLogger.warning', lambda self, line, *rest: lines.append(str(line))
    )
    return lines


RANDOM_WEIGHTS = {}
"""State dicts of model and optimizer by config, since building a detector takes a second."""


@pytest.fixture
def fill_the_disk(monkeypatch):
    """A function after which a file of this name is written in part, and the disk is full."""
    write_bytes = Path.write_bytes

    def fill(name):
        def write(path, data):
            if path.name == name:
                write_bytes(path, data[:100])
                raise OSError(errno.ENOSPC, 'No space left on device', str(path))
            return write_bytes(path, data)

        monkeypatch.setattr(Path, 'write_bytes', write)

    return fill


@pytest.fixture
def write_checkpoint():
    """A function that writes a checkpoint with random weights, and an optimizer, for a config."""

    def write(config, path, **others):
        cfg = Config.fromfile(config)
        init_default_scope(cfg.default_scope)
        key = str((cfg.model, cfg.optim_wrapper))
        if key not in RANDOM_WEIGHTS:
            torch.manual_seed(0)
            model = MODELS.build(cfg.model)
            optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
            RANDOM_WEIGHTS[key] = (model.state_dict(), optimizer.state_dict())
        weights, optimizer = RANDOM_WEIGHTS[key]
        if 'optimizer' in others:
            others['optimizer'] = optimizer
        torch.save({'state_dict': weights, **others}, path)
        return path

    return write


@pytest.fixture
def run_tool(root):
    """A function that runs a script of tools/ and returns the process; `stdout` has its stderr
    too.
    """

    def run(tool, *arguments, check=True, cwd=None):
        launcher = sys.executable
        if tool.endswith('.sh'):
            launcher = 'bash'
        result = subprocess.run(
            [launcher, str(root / 'tools' / tool), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd or root,
            env=environment(),
            timeout=300,
            check=False,
        )
        assert not check or result.returncode == 0, result.stdout[-6000:]
        return result

    return run


@pytest.fixture
def start_tool(root):
    """Like `run_tool`, but returns the running process."""
    started = []

    def start(tool, *arguments):
        command = [sys.executable, str(root / 'tools' / tool), *map(str, arguments)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=root,
            env=environment(),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
