"""Checkpoints that a full disk or a killed process cannot spoil; outdated ones are removed last."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook

from mmpola.checkpoint.writing import write_atomically
from mmpola.registry import HOOKS

ATOMIC = {'backend': 'mmpola_atomic'}
"""`backend_args` with which MMEngine writes files atomically."""


@register_backend('mmpola_atomic', force=True)
class AtomicBackend(LocalBackend):
    """MMEngine's backend for local files, with atomic writes."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file and the folders that lead to it.

        Raises:
            OSError: the system refuses the write; the old file is unchanged and no partial file is left.
        """
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)
        try:
            write_atomically(filepath, obj)
        except OSError as error:
            message = f'could not be written ({error.strerror}); earlier checkpoints are intact'
            raise OSError(error.errno, message, str(filepath)) from error


def save_and_point(runner: Any, folder: str, name: str, **options: Any) -> None:
    """Save a checkpoint, then its path in `last_checkpoint`. Every rank calls this; rank 0 writes."""
    runner.save_checkpoint(folder, name, **options)
    if is_main_process():
        path = os.path.join(folder, name)
        AtomicBackend().put(path.encode(), os.path.join(runner.work_dir, 'last_checkpoint'))


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook, with the same arguments, for local folders.

    MMEngine removes the outdated checkpoint first and writes the new one in place, so a full disk can leave none. Here
    a checkpoint gets its name when it is complete, then `last_checkpoint` is updated, and only then the outdated ones
    are removed: for a moment there is one checkpoint more than `max_keep_ckpts`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{'backend_args': ATOMIC, **kwargs})

    def _save_checkpoint_with_step(self, runner: Any, step: int, meta: dict[str, Any]) -> None:
        outdated = []
        if self.max_keep_ckpts > 0:
            kept = [*(old for old in self.keep_ckpt_ids if old != step), step]
            outdated, kept = kept[: -self.max_keep_ckpts], kept[-self.max_keep_ckpts :]
            self.keep_ckpt_ids.clear()
            self.keep_ckpt_ids.extend(kept)
            runner.message_hub.update_info('keep_ckpt_ids', kept)
        name = self.filename_tmpl.format(step)
        self.last_ckpt = os.path.join(self.out_dir, name)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        save_and_point(
            runner,
            self.out_dir,
            name,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        self._remove(*(os.path.join(self.out_dir, self.filename_tmpl.format(old)) for old in outdated))

    def _save_best_checkpoint(self, runner: Any, metrics: dict[str, Any]) -> None:
        if not self.save_best:
            return
        before = self._best()
        self._set_best(dict.fromkeys(before))  # MMEngine removes the files named here before it writes
        super()._save_best_checkpoint(runner, metrics)
        now = {name: path or before.get(name) for name, path in self._best().items()}
        self._set_best(now)
        self._remove(*(path for path in before.values() if path and path not in now.values()))

    def _best(self) -> dict[str, str | None]:
        """Return the path of the best checkpoint by metric."""
        if len(self.key_indicators) == 1:
            return {self.key_indicators[0]: self.best_ckpt_path}
        return {name: self.best_ckpt_path_dict.get(name) for name in self.key_indicators}

    def _set_best(self, paths: dict[str, str | None]) -> None:
        if len(self.key_indicators) == 1:
            (self.best_ckpt_path,) = paths.values()
        else:
            self.best_ckpt_path_dict = paths

    def _remove(self, *paths: str) -> None:
        if is_main_process():
            for path in paths:
                Path(path).unlink(missing_ok=True)
