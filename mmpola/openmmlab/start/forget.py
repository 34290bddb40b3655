"""Remove the checkpoints of the run that a new one overwrites."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook

from mmpola.openmmlab.run.atomic_checkpoint import AtomicCheckpointHook

CHECKPOINT_NAME = re.compile(r'(?P<unit>epoch|iter)_(?P<number>\d+)(-[0-9a-f]{8})?\.pth$')
"""End of the names that MMEngine's hook gives, with the digits of a published file."""


class ForgetHook(Hook):
    """Lets a run replace what an earlier one has left, or the rest of one that it resumes from.

    A new run empties the record of the earlier one, when everything is built: a later --resume
    could continue from its end; its files are older than the empty record. When this run has saved
    something, checkpoints of steps that it has not made are removed: `best_*.pth` would name those
    of two runs.

    Args:
        kept: files that the config names, which stay.
        resumes: whether the run continues from a checkpoint.
    """

    priority = 'LOWEST'  # after the checkpoint hook knows its folder

    def __init__(self, kept: Sequence[str] = (), resumes: bool = False) -> None:
        self.kept = {Path(name).resolve() for name in kept}
        self.resumes = resumes
        self.outdated: dict[Path, os.stat_result] = {}

    def before_train(self, runner: Any) -> None:
        """Empty `last_checkpoint`, and note the checkpoints."""
        if not is_main_process():
            return
        if not self.resumes:
            Path(runner.work_dir, 'last_checkpoint').write_bytes(b'')
        folders = {Path(runner.work_dir)}
        folders.update(
            Path(hook.out_dir) for hook in runner.hooks if isinstance(hook, AtomicCheckpointHook)
        )
        for path in (path for folder in folders for path in folder.glob('*.pth')):
            found = CHECKPOINT_NAME.search(path.name)
            if found is None or path.resolve() in self.kept:
                continue
            done = runner.epoch if found['unit'] == 'epoch' else runner.iter
            if int(found['number']) > done:
                self.outdated[path] = path.stat()

    def after_saved(self, runner: Any) -> None:
        """Remove them, except those that this run has written anew."""
        for path, before in self.outdated.items():
            if path.exists():
                now = path.stat()
                if (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns):
                    path.unlink()
        self.outdated = {}
