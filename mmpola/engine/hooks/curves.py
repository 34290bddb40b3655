"""Draws the curves of a training run, and continues the log of scalars when it is resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook, LoggerHook
from mmengine.visualization import LocalVisBackend

from mmpola.checkpoint.write import write_atomically
from mmpola.engine.curves import draw_curves
from mmpola.engine.loops import VALIDATION_DUE
from mmpola.engine.processes import is_killed_worker
from mmpola.engine.seeding import unchanged_generators
from mmpola.messages import first_line, info

CURVES = 'curves.png'
"""Name of the picture in the work dir."""

VALIDATED = 'curves/step'
"""Key in the message hub: the step of each validation.

MMEngine logs keys that begin with `train`, `val` or `test`, and saves all of them.
"""


class CurvesHook(Hook):
    """Draws `curves.png` in the work dir after each validation and at the end.

    It shows the losses, the learning rate and the metrics; metrics of single classes have a plot of
    their own. MMEngine keeps the values in checkpoints, so the curves of a resumed run begin at the
    first step, without the steps that the earlier run did after the checkpoint.

    For the same reason `scalars.json` of a resumed run begins with the lines of the run that wrote
    the checkpoint.

    A picture or file that cannot be written is a line in the log.
    """

    priority = 'LOW'  # after the log line, before the checkpoint with the best metric

    def before_train(self, runner: Any) -> None:
        """Copy the scalars of the run that is resumed."""
        if runner.iter == 0 or not is_main_process():
            return
        for backend in runner.visualizer._vis_backends.values():
            if isinstance(backend, LocalVisBackend):
                try:
                    continue_scalars(runner, backend)
                except Exception as error:
                    if is_killed_worker(error):
                        raise
                    info(f'scalars.json: not continued ({first_line(error)}); training goes on')

    def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        """Note the step of the validation and draw."""
        if runner._train_loop is None or isinstance(runner._train_loop, dict):
            return  # a validation without training
        runner.message_hub.update_scalar(VALIDATED, runner.iter)
        self._draw(runner)

    def after_train(self, runner: Any) -> None:
        """Draw the steps after the last validation too."""
        self._draw(runner)

    def _draw(self, runner: Any) -> None:
        if not is_main_process():
            return
        path = Path(runner.work_dir, CURVES)
        try:
            with unchanged_generators():
                write_atomically(path, draw_scalars(runner))
        except Exception as error:
            if is_killed_worker(error):
                raise
            info(f'{path}: not drawn ({first_line(error)}); training goes on')


def draw_scalars(runner: Any) -> bytes:
    """Draw the scalars in the message hub of a runner; return a PNG."""
    hub = runner.message_hub
    histories = {name: history.data[0] for name, history in hub.log_scalars.items()}
    metainfo = hub.runtime_info.get('dataset_meta') or {}
    classes = [str(name) for name in metainfo.get('classes') or ()]
    return draw_curves(histories, histories.get(VALIDATED, ()), runner.iter, classes)


def continue_scalars(runner: Any, backend: Any) -> None:
    """Begin `scalars.json` of a resumed run with the lines of the run that wrote the checkpoint.

    Args:
        runner: which has loaded the checkpoint.
        backend: MMEngine's LocalVisBackend of the run.
    """
    own = Path(backend.experiment._scalar_save_file)  # `experiment` sets the path
    folder = Path(runner.work_dir)
    if runner._load_from:
        folder = Path(runner._load_from).parent
    earlier = [path for path in folder.glob(f'*/vis_data/{own.name}') if path != own]
    if not earlier:
        return
    newest = max(earlier, key=lambda path: path.stat().st_mtime)
    by_epoch = any(
        isinstance(hook, LoggerHook) and hook.log_metric_by_epoch for hook in runner.hooks
    )
    done = runner.iter
    if by_epoch:
        done = runner.epoch
    is_due = bool(runner.message_hub.runtime_info.get(VALIDATION_DUE))
    lines = lines_before(newest.read_text().splitlines(), runner.iter, done, is_due)
    own_lines = ''
    if own.exists():
        own_lines = own.read_text()
    text = ''.join(f'{line}\n' for line in lines) + own_lines
    own.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(own, text.encode())


def lines_before(lines: list[str], steps: int, validated: int, is_due: bool) -> list[str]:
    """Return the lines of `scalars.json` that belong to the run up to a checkpoint.

    Args:
        lines: of a file.
        steps: that the checkpoint has done.
        validated: the `step` that MMEngine writes for a validation at the checkpoint.
        is_due: whether the resumed run repeats this validation.
    """
    kept = []
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:  # the process was killed while it wrote
            continue
        is_training = 'iter' in values
        if is_training and values['iter'] > steps:
            break
        if not is_training and is_due and values.get('step') == validated:
            continue
        kept.append(line)
    return kept
