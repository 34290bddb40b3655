"""Running the scripts as a user does, on a config that takes seconds."""

import os
import subprocess
import sys

import pytest

TINY = """
_base_ = {base!r}

model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=8, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 4))),
    neck=dict(in_channels=[8, 16, 32, 64]),
)
train_dataloader = dict(
    batch_size=2, num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r})
)
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r}))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file={data!r} + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=3, val_interval=3)
default_hooks = dict(logger=dict(interval=1))
randomness = dict(seed=0)
"""


@pytest.fixture
def tiny_config(root, shapes, tmp_path):
    """The quick start's config, shrunken, on 12 generated scenes: 3 epochs of 6 steps."""
    base, data = str(root / 'configs' / 'mask_rcnn_pola_swin_shapes.py'), f'{shapes}/coco/'
    path = tmp_path / 'tiny.py'
    path.write_text(TINY.format(base=base, data=data))
    return path


def environment():
    return {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONUNBUFFERED': '1'}


@pytest.fixture
def run_tool(root):
    """tool name and arguments -> the finished process, stdout and stderr together in `stdout`."""

    def run(tool, *arguments, check=True, cwd=None):
        launcher = ['bash'] if tool.endswith('.sh') else [sys.executable]
        result = subprocess.run(
            [*launcher, str(root / 'tools' / tool), *map(str, arguments)],
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
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=root, env=environment()
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
