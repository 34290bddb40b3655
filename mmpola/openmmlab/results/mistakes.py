"""Pictures of what a network gets wrong, and which mistakes cost most, after training and test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import collect_results
from mmengine.hooks import Hook
from numpy.typing import NDArray

from mmpola.files import write_atomically, write_figure
from mmpola.images import encoded
from mmpola.messages import first_line, info
from mmpola.openmmlab.processes import is_killed_worker
from mmpola.openmmlab.results import mistakes_picture, wrong_boxes
from mmpola.openmmlab.run.seeding import unchanged_generators

MISTAKES = 'mistakes.jpg'
CONFUSION = 'confusion.png'
"""Names of the pictures in the work dir."""

WORST = 12
"""Number of images in `mistakes.jpg`."""


class MistakesHook(Hook):
    """Draws what a network gets wrong into `mistakes.jpg` and `confusion.png` in the work dir.

    It draws at the end of a run, of its last validation or test: detections, in an evaluation of
    several processes of all of them. During the evaluation it keeps the boxes of each image; the
    metrics are the same without it. A drawing that fails is a line in the log.
    """

    priority = 'ABOVE_NORMAL'  # its line comes before ScreenHook's last ones

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.title = ''
        self.dataset: Any = None

    def _before_epoch(self, runner: Any, mode: str = 'train') -> None:
        """Forget an earlier evaluation."""
        if mode == 'train':
            return
        self.records = []
        self.dataset = getattr(runner, f'{mode}_dataloader').dataset
        self.title = {'val': 'validation data', 'test': 'test data'}[mode]
        if mode == 'val':
            self.title += f' after step {runner.iter:,}'

    def _after_iter(
        self,
        runner: Any,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
        mode: str = 'train',
    ) -> None:
        """Keep what the pictures need of a batch."""
        if mode == 'train':
            return
        for sample in outputs:
            try:
                self.records.append(wrong_boxes.detections_of(sample))
            except Exception as error:  # of any type, as models of other packages predict
                if is_killed_worker(error):
                    raise
                self.records.append(first_line(error))

    def _after_epoch(self, runner: Any, mode: str = 'train') -> None:
        """Collect the records of all processes, as their metrics have just been."""
        if mode != 'train':
            records = collect_results(self.records, len(self.dataset), device='gpu')  # or gloo
            self.records = [record for record in records or () if record is not None]

    def after_run(self, runner: Any) -> None:
        """Draw the newest evaluation, in the first process."""
        if not self.records:
            return
        failed = next((record for record in self.records if isinstance(record, str)), None)
        try:
            if failed is None:
                with unchanged_generators():
                    self._draw(Path(runner.work_dir))
        except Exception as error:  # of any type, as data sets of other packages are read
            if is_killed_worker(error):
                raise
            failed = first_line(error)
        if failed is not None:
            info(f'{Path(runner.work_dir, MISTAKES)}: not drawn ({failed})')

    def _draw(self, folder: Path) -> None:
        """Write the pictures, and say what costs most."""
        found = wrong_boxes.judged(self.records, self.dataset)
        if not len(found.true_labels):
            return
        classes = [str(name) for name in self.dataset.metainfo['classes']]
        names = [*classes, 'background']
        score = wrong_boxes.best_score(found)
        partner = wrong_boxes.partners(found, score)
        matrix = wrong_boxes.confusion(found, partner, len(classes))
        curves, growth = wrong_boxes.costs(found, len(classes))
        title = f'{self.title}, detections with a score of at least {score:.2f} (best F1)'
        figure = mistakes_picture.draw_confusion(matrix, names, title, curves)
        tiles = mistakes_picture.worst_boxes(found, partner, classes, WORST)
        write_figure(folder / CONFUSION, figure, dpi=110)
        files = CONFUSION
        if tiles:
            files = f'{MISTAKES}, {CONFUSION}'
            pixels = mistakes_picture.sheet(tiles, title, mistakes_picture.BOX_LEGEND)
            write_atomically(folder / MISTAKES, encoded(pixels, 'jpeg', quality=90, subsampling=0))
        else:
            (folder / MISTAKES).unlink(missing_ok=True)  # of an earlier evaluation
        missing = 100 - 100 * float(np.nanmean(curves))
        line = cost_line(missing, growth, matrix, classes)
        info(f'costs most   {line}; see {files} in {folder}')


def cost_line(
    missing: float,
    growth: dict[str, NDArray[Any]],
    matrix: NDArray[Any],
    classes: Sequence[str],
) -> str:
    """Say how many points of AP50 each kind of mistakes costs, the worst one first.

    Args:
        missing: points up to an AP50 of 100.
        growth: of each kind and class, as `wrong_boxes.costs` returns it.
        matrix: (true class, detected class), [C + 1, C + 1].
        classes: their names, [C].
    """
    points = {kind: 100 * float(np.nanmean(growth[kind])) for kind in growth}
    texts: list[str] = []
    for kind in sorted(points, key=lambda kind: -points[kind]):
        if points[kind] < 0.05:
            break
        text = f'{kind} {points[kind]:.1f}'
        if not texts and kind == wrong_boxes.WRONG_CLASS:
            others = matrix[:-1, :-1] * ~np.eye(len(classes), dtype=bool)
            true, called = divmod(int(others.argmax()), len(classes))
            text += f' (most often {classes[true]} called {classes[called]})'
        elif not texts and len(classes) > 1:
            text += f' (most of it {classes[int(np.nanargmax(growth[kind]))]})'
        texts.append(text)
    return f'of {missing:.1f} missing points of AP50: {", ".join(texts) or "none of one kind"}'
