"""Save checkpoints so that a full disk or a killed process cannot damage them."""

from __future__ import annotations

import inspect
import os
from collections import deque
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.logging import HistoryBuffer

from mmpola.checkpoint.write import plain_values
from mmpola.files import PARTIAL_SUFFIX, write_atomically
from mmpola.messages import UsageError
from mmpola.openmmlab.run.finite import refuse_non_finite
from mmpola.openmmlab.run.loops import VALIDATION_DUE

ATOMIC_BACKEND = {'backend': 'mmpola_atomic'}
"""`backend_args` that make MMEngine write files atomically."""

INTERRUPTED = 'interrupted.pth'
"""Name of the checkpoint of an interrupted run, in its work dir."""


WRITTEN = (
    *('*.pth', 'last_checkpoint', 'curves.png', 'first_batch.jpg', 'final_test.json'),
    *('confusion.png', 'mistakes.jpg'),
)
"""What training writes into its work dir; other commands may be writing there too."""


class SaveError(UsageError):
    """A checkpoint could not be written; earlier ones are intact."""


@register_backend('mmpola_atomic', force=True)
class AtomicBackend(LocalBackend):
    """MMEngine's backend for local files, which writes atomically and removes nothing itself.

    MMEngine removes an outdated checkpoint before it writes the one that replaces it, so `remove`
    only notes the file.

    Attributes:
        outdated: the files to remove after the next checkpoint was written.
    """

    def __init__(self) -> None:
        self.outdated: list[str] = []

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

    def remove(self, filepath: str | Path) -> None:
        """Note a file in `outdated`."""
        self.outdated.append(str(filepath))


def save_and_point(
    runner: Any, folder: str, name: str, *, alone: bool = False, **options: Any
) -> None:
    """Save a checkpoint, then its path in `last_checkpoint`, then remove `interrupted.pth`.

    Every rank calls this; rank 0 writes. Then hooks that have a method `after_saved` are called.

    Args:
        runner: of the run.
        folder, name: of the checkpoint.
        alone: only rank 0 calls this, and waits for no other process.
        options: of `Runner.save_checkpoint`.

    Raises:
        NonFiniteError: weights are NaN or infinite.
        SaveError: a file cannot be written.
    """
    refuse_non_finite(runner, alone)
    runner.save_checkpoint(folder, name, **options)
    if is_main_process():
        path = os.path.join(folder, name)
        AtomicBackend().put(os.fsencode(path), os.path.join(runner.work_dir, 'last_checkpoint'))
        if name != INTERRUPTED:
            Path(runner.work_dir, INTERRUPTED).unlink(missing_ok=True)
    runner.call_hook('after_saved')


class AtomicCheckpointHook(CheckpointHook):
    """MMEngine's CheckpointHook, with the same arguments, for local folders.

    MMEngine removes the outdated checkpoint first and writes the new one in place, so a full disk
    can leave none at all. This hook renames a checkpoint to its name when it is complete, then
    updates `last_checkpoint`, and then removes outdated checkpoints. For a moment there is one more
    than `max_keep_ckpts`.

    A run that another hook ends between two checkpoints saves its last weights too, unless
    `save_last=False`.

    Its files contain only tensors and plain Python values, so that `torch.load(weights_only=True)`
    and OpenMMLab's inferencers can open them. MMEngine's log history is rebuilt when a checkpoint
    is loaded.

    Args:
        args, kwargs: as in CheckpointHook.

    Attributes:
        saved_at: number of steps whose result is in a checkpoint; None before training.

    Raises:
        TypeError: an argument is unknown, or no number.
        NonFiniteError: weights are NaN or infinite: no checkpoint is written, and none removed.
        SaveError: a checkpoint cannot be written.
    """

    last_ckpt: str | None
    keep_ckpt_ids: deque[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        unknown = kwargs.keys() - inspect.signature(CheckpointHook).parameters.keys()
        if unknown:  # MMEngine would pass them to torch.save after the first epoch
            raise TypeError(f"got an unexpected keyword argument '{min(unknown)}'")
        older = kwargs.pop('file_client_args', None)  # MMEngine's earlier name of backend_args
        if older and older.get('backend') != 'disk':
            kwargs.setdefault('backend_args', older)
        kwargs.setdefault('backend_args', ATOMIC_BACKEND)
        super().__init__(*args, **kwargs)
        for name in ('interval', 'max_keep_ckpts'):
            value = getattr(self, name)
            if not isinstance(value, int):  # MMEngine would compare it after the first epoch
                raise TypeError(f'{name}: expected a whole number, got {value!r}')
        self.unvalidated: tuple[int, dict[str, Any]] | None = None
        self.saved_at: int | None = None

    def before_train(self, runner: Any) -> None:
        """Remove what a killed run had begun to write; know what it has not validated."""
        self._find_moved(runner)
        super().before_train(runner)
        self.saved_at = runner.iter
        if runner.message_hub.runtime_info.get(VALIDATION_DUE):
            self._note_last_step(runner)
        if is_main_process():
            for folder in {self.out_dir, runner.work_dir}:
                for name in WRITTEN:
                    for partial in Path(folder).glob(f'{name}{PARTIAL_SUFFIX}'):
                        partial.unlink()

    def _find_moved(self, runner: Any) -> None:
        """Take the noted checkpoints from the work dir, if it has files of their names.

        It may have been moved since they were noted.
        """
        information = runner.message_hub.runtime_info
        for key, path in list(information.items()):
            if path and (key == 'last_ckpt' or key.startswith('best_ckpt')):
                found = Path(runner.work_dir, Path(path).name)
                if found.is_file():
                    runner.message_hub.update_info(key, str(found))

    def _note_last_step(self, runner: Any) -> None:
        """Note the step of a run that was killed in its last validation, to save it again."""
        end = runner.max_iters
        if self.by_epoch:
            end = runner.max_epochs
        step, meta = self._position(runner)
        if step == end:
            self.unvalidated = (step, meta)

    def _position(self, runner: Any) -> tuple[int, dict[str, Any]]:
        """Return the number in the name of a checkpoint between two steps, and its `meta`."""
        step = runner.epoch if self.by_epoch else runner.iter
        return step, {'epoch': runner.epoch, 'iter': runner.iter}

    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Replace what the file would pickle as classes of MMEngine and NumPy."""
        logged = checkpoint['message_hub']['log_scalars']
        for name, history in logged.items():
            logs, counts = history.data
            logged[name] = {
                'log_history': torch.from_numpy(logs),
                'count_history': torch.from_numpy(counts),
                'max_length': history.max_length,
            }
        for name, entry in checkpoint.items():
            if not name.endswith('state_dict'):  # a state dict keeps the metadata that torch reads
                checkpoint[name] = plain_values(entry)

    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Rebuild the log history, which MMEngine expects when it resumes."""
        logged = checkpoint.get('message_hub', {}).get('log_scalars', {})
        for name, saved in logged.items():
            if isinstance(saved, dict):
                logs = saved['log_history'].cpu().numpy()
                counts = saved['count_history'].cpu().numpy()
                logged[name] = HistoryBuffer(logs, counts, saved['max_length'])

    def _save_checkpoint_with_step(self, runner: Any, step: int, meta: dict[str, Any]) -> None:
        if self.max_keep_ckpts > 0 and step not in self.keep_ckpt_ids:
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                oldest = self.filename_tmpl.format(self.keep_ckpt_ids.popleft())
                self.file_backend.remove(os.path.join(self.out_dir, oldest))
            self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
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
        self._remove_outdated()
        self.saved_at = meta['iter']
        self.unvalidated = None
        if runner.message_hub.runtime_info.get(VALIDATION_DUE):
            self.unvalidated = (step, meta)

    def after_train(self, runner: Any) -> None:
        """Save the last checkpoint again, if it says that it is still to be validated.

        If a hook has ended the run since the last checkpoint, such as EarlyStoppingHook, save one.
        """
        if self.unvalidated is not None and not runner.message_hub.get_info(VALIDATION_DUE):
            self._save_checkpoint_with_step(runner, *self.unvalidated)
        elif self.save_last and runner.iter != self.saved_at:
            self._save_checkpoint_with_step(runner, *self._position(runner))
        super().after_train(runner)

    def _save_best_checkpoint(self, runner: Any, metrics: dict[str, Any]) -> None:
        if not self.save_best:
            return
        refuse_non_finite(runner)
        # MMEngine saves the newest checkpoint again here.
        runner.message_hub.update_info(VALIDATION_DUE, False)
        super()._save_best_checkpoint(runner, metrics)
        self._remove_outdated()
        runner.call_hook('after_saved')

    def _remove_outdated(self) -> None:
        """Remove the outdated files of this run; the best checkpoint may be another run's."""
        if not isinstance(self.file_backend, AtomicBackend):
            return
        if is_main_process():
            for path in self.file_backend.outdated:
                if os.path.dirname(path) == self.out_dir:
                    Path(path).unlink(missing_ok=True)
        self.file_backend.outdated = []
