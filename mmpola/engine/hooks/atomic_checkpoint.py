"""Save checkpoints so that a full disk or a killed process cannot damage them."""

from __future__ import annotations

import inspect
import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import HistoryBuffer

from mmpola.checkpoint.write import PARTIAL_SUFFIX, plain_values, write_atomically
from mmpola.engine.hooks.finite import refuse_non_finite
from mmpola.engine.loops import VALIDATION_DUE
from mmpola.engine.processes import any_process
from mmpola.registry import HOOKS

ATOMIC_BACKEND = {'backend': 'mmpola_atomic'}
"""`backend_args` that make MMEngine write files atomically."""

INTERRUPTED = 'interrupted.pth'
"""Name of the checkpoint of an interrupted run, in its work dir."""


class SaveError(OSError):
    """A checkpoint could not be written; earlier ones are intact."""


@register_backend('mmpola_atomic', force=True)
class AtomicBackend(LocalBackend):
    """MMEngine's backend for local files, with atomic writes."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write a file and the folders that lead to it.

        Raises:
            SaveError: the system refuses the write; the old file is unchanged and no partial file
                is left.
        """
        try:
            Path(filepath).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(filepath, obj)
        except OSError as error:
            reason = error.strerror or error
            raise SaveError(
                f'{filepath}: could not be written ({reason}); earlier checkpoints are intact'
            ) from error


def save_and_point(runner: Any, folder: str, name: str, **options: Any) -> None:
    """Save a checkpoint, then its path in `last_checkpoint`, then remove `interrupted.pth`.

    Every rank calls this; rank 0 writes.

    Raises:
        NonFiniteError: weights are NaN or infinite.
        SaveError: a file cannot be written.
    """
    refuse_non_finite(runner)
    runner.save_checkpoint(folder, name, **options)
    if is_main_process():
        path = os.path.join(folder, name)
        AtomicBackend().put(os.fsencode(path), os.path.join(runner.work_dir, 'last_checkpoint'))
        if name != INTERRUPTED:
            Path(runner.work_dir, INTERRUPTED).unlink(missing_ok=True)


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook, with the same arguments, for local folders.

    MMEngine removes the outdated checkpoint first and writes the new one in place, so a full disk
    can leave none at all. This hook renames a checkpoint to its name when it is complete, then
    updates `last_checkpoint`, and then removes outdated checkpoints. For a moment there is one more
    than `max_keep_ckpts`.

    Its files contain only tensors and plain Python values, so that `torch.load(weights_only=True)`
    and OpenMMLab's inferencers can open them. MMEngine's log history is rebuilt when a checkpoint
    is loaded.

    Args:
        on_error: what happens if a checkpoint cannot be written, for example because the disk is
            full: 'stop' the run, or 'continue' without this checkpoint. The error is logged, and
            earlier checkpoints stay.
        args, kwargs: as in CheckpointHook.

    Raises:
        ValueError: on_error is neither.
        TypeError: an argument is unknown.
        NonFiniteError: weights are NaN or infinite: no checkpoint is written, and none removed.
        SaveError: a checkpoint cannot be written, and on_error is 'stop'.
    """

    last_ckpt: str | None
    keep_ckpt_ids: deque[int]

    def __init__(self, *args: Any, on_error: str = 'stop', **kwargs: Any) -> None:
        if on_error not in ('stop', 'continue'):
            raise ValueError(f"on_error: expected 'stop' or 'continue', got {on_error!r}")
        unknown = kwargs.keys() - inspect.signature(CheckpointHook).parameters.keys()
        if unknown:  # MMEngine would pass them to torch.save
            raise TypeError(f"got an unexpected keyword argument '{min(unknown)}'")
        kwargs.setdefault('backend_args', ATOMIC_BACKEND)
        super().__init__(*args, **kwargs)
        self.on_error = on_error

    def before_train(self, runner: Any) -> None:
        """Remove what a killed run had begun to write; find the best one of a moved work dir."""
        super().before_train(runner)
        best = self._best()
        for name, path in best.items():
            if not path:
                continue
            moved = os.path.join(self.out_dir, os.path.basename(path))
            if os.path.isfile(moved):
                best[name] = moved
                runner.message_hub.update_info(self._hub_key('best_ckpt', name), moved)
        self._set_best(best)
        # Only names that a run writes: other files may belong to the user.
        for pattern in (self.filename_tmpl.format('*'), 'best_*.pth'):
            for partial in Path(self.out_dir).glob(f'{pattern}{PARTIAL_SUFFIX}'):
                self._remove(partial)
        for name in (INTERRUPTED, 'last_checkpoint'):
            self._remove(Path(runner.work_dir, f'{name}{PARTIAL_SUFFIX}'))

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """Create the work dir again if it was removed while training runs."""
        self._restore_work_dir(runner)

    def after_val_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Create the work dir again if it was removed while validation runs."""
        self._restore_work_dir(runner)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Replace what the file would pickle as classes of MMEngine and NumPy."""
        logged = checkpoint['message_hub']['log_scalars']
        for name, history in logged.items():
            logged[name] = _saved_history(history)
        for name, entry in checkpoint.items():
            if not name.endswith('state_dict'):  # a state dict keeps the metadata that torch reads
                checkpoint[name] = plain_values(entry)

    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Rebuild the log history, which MMEngine expects when it resumes."""
        logged = checkpoint.get('message_hub', {}).get('log_scalars', {})
        for name, saved in logged.items():
            logged[name] = _loaded_history(saved)

    def _restore_work_dir(self, runner: Any) -> None:
        """Create the log folder, the logs and the copy of the config again if they were removed.

        Raises:
            SaveError: the folder cannot be created.
        """
        if os.path.isdir(runner.log_dir) or not is_main_process():
            return
        try:
            os.makedirs(runner.log_dir)
        except OSError as error:
            reason = error.strerror or error
            raise SaveError(f'{runner.log_dir}: could not be created again ({reason})') from error
        for backend in runner.visualizer._vis_backends.values():
            backend._env_initialized = False  # with the next value it creates its files again
        for handler in runner.logger.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.close()
                handler.mode = 'a'  # it opens the file again with this mode
        runner.dump_config()
        runner.logger.error(
            f'{runner.work_dir}: was removed while training ran, with the checkpoints in it; '
            'it is created again, and training continues'
        )

    @contextmanager
    def _restored_on_error(self, runner: Any) -> Iterator[None]:
        """With on_error='continue', log a SaveError and undo what was recorded since the start."""
        info = runner.message_hub.runtime_info
        info_before = dict(info)
        attributes_before = dict(vars(self))
        try:
            yield
        except SaveError as error:
            if self.on_error == 'stop':
                raise
            runner.logger.error(f'{error}; training continues without this checkpoint')
            info.clear()
            info.update(info_before)
            self.__dict__.update(attributes_before)

    def _save_checkpoint_with_step(self, runner: Any, step: int, meta: dict[str, Any]) -> None:
        with self._restored_on_error(runner):
            outdated: list[int] = []
            if self.max_keep_ckpts > 0:
                steps = [old for old in self.keep_ckpt_ids if old != step]
                steps.append(step)
                outdated = steps[: -self.max_keep_ckpts]
                kept = steps[-self.max_keep_ckpts :]
                self.keep_ckpt_ids = deque(kept)
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
            for old in outdated:
                self._remove(os.path.join(self.out_dir, self.filename_tmpl.format(old)))

    def _save_best_checkpoint(self, runner: Any, metrics: dict[str, Any]) -> None:
        if not self.save_best:
            return
        refuse_non_finite(runner)
        # MMEngine saves the newest checkpoint again here.
        runner.message_hub.update_info(VALIDATION_DUE, False)
        with self._restored_on_error(runner):
            self._forget_removed(runner)
            before = self._best()
            # MMEngine removes the files that are named here before it writes.
            self._set_best(dict.fromkeys(before))
            super()._save_best_checkpoint(runner, metrics)
            now = self._best()
            for name, path in now.items():
                if not path:  # this metric has not improved
                    now[name] = before.get(name)
            self._set_best(now)
            for path in before.values():
                if path is None or path in now.values():
                    continue
                if os.path.dirname(path) == self.out_dir:  # others belong to another run
                    self._remove(path)

    def _forget_removed(self, runner: Any) -> None:
        """Forget best checkpoints whose files were removed: the next one is saved at any score."""
        best = self._best()
        for name, path in best.items():
            if path and any_process(is_main_process() and not os.path.isfile(path)):
                runner.message_hub.runtime_info.pop(self._hub_key('best_score', name), None)
                best[name] = None
                runner.logger.error(f'{path}: the best checkpoint was removed while training ran')
        self._set_best(best)

    def _best(self) -> dict[str, str | None]:
        """Return the path of the best checkpoint by metric; nothing if none is kept."""
        if not self.save_best:
            return {}
        if len(self.key_indicators) == 1:
            return {self.key_indicators[0]: self.best_ckpt_path}
        return {name: self.best_ckpt_path_dict.get(name) for name in self.key_indicators}

    def _hub_key(self, what: str, metric: str) -> str:
        """Return MMEngine's key in the message hub: it names the metric if there are several."""
        if len(self.key_indicators) == 1:
            return what
        return f'{what}_{metric}'

    def _set_best(self, paths: dict[str, str | None]) -> None:
        """Set the paths that `_best` returns."""
        if not paths:
            return
        if len(self.key_indicators) == 1:
            (self.best_ckpt_path,) = paths.values()
        else:
            self.best_ckpt_path_dict = paths

    def _remove(self, path: str | Path) -> None:
        if is_main_process():
            Path(path).unlink(missing_ok=True)


def _saved_history(history: HistoryBuffer) -> dict[str, Any]:
    """Return the arguments to rebuild a log history from."""
    logs, counts = history.data
    return {
        'log_history': torch.from_numpy(logs),
        'count_history': torch.from_numpy(counts),
        'max_length': history.max_length,
    }


def _loaded_history(saved: Any) -> Any:
    """Rebuild a log history."""
    if not isinstance(saved, Mapping) or 'log_history' not in saved:
        return saved  # not a log history: MMEngine warns and leaves it out
    logs = torch.as_tensor(saved['log_history']).cpu().numpy()
    counts = torch.as_tensor(saved['count_history']).cpu().numpy()
    return HistoryBuffer(logs, counts, saved['max_length'])
