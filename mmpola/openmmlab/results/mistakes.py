"""Pictures of what a network gets wrong, and which mistakes cost most, after training and test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import collect_results
from mmengine.hooks import Hook

from mmpola.files import write_atomically, write_figure
from mmpola.images import class_colours, encoded
from mmpola.messages import first_line, info
from mmpola.openmmlab.processes import is_killed_worker
from mmpola.openmmlab.results import mistakes_picture, wrong_boxes, wrong_labels
from mmpola.openmmlab.run.seeding import unchanged_generators

MISTAKES = 'mistakes.jpg'
CONFUSION = 'confusion.png'
"""Names of the pictures in the work dir."""

WORST = 12
"""Number of images in `mistakes.jpg`."""


class MistakesHook(Hook):
    """Draws what a network gets wrong into `mistakes.jpg` and `confusion.png` in the work dir.

    It draws boxes, label maps or classes of the validation after the last step, or of a test, in
    several processes of all of them. During this evaluation it keeps the boxes or counts of each
    image, and a few label maps; the metrics are the same without it. Earlier validations are left
    as fast as they are. A drawing that fails is a line in the log.
    """

    priority = 'ABOVE_NORMAL'  # its line comes before ScreenHook's last ones

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.title = ''
        self.dataset: Any = None

    def _before_epoch(self, runner: Any, mode: str = 'train') -> None:
        """Forget an earlier evaluation, and look whether this one is drawn."""
        if mode == 'train':
            return
        self.records = []
        self.dataset = None
        if mode == 'val' and runner.iter < runner.max_iters:
            return
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
        if mode == 'train' or self.dataset is None:
            return
        for sample in outputs:
            try:
                self.records.append(self._record(sample))
            except Exception as error:  # of any type, as models of other packages predict
                if is_killed_worker(error):
                    raise
                self.records.append(first_line(error))
            wrong_labels.drop_maps(self.records, WORST)

    def _record(self, sample: Any) -> Any:
        """Return what the pictures need of a data sample; None of one that is not drawn."""
        boxes = wrong_boxes.detections_of(sample)
        classes = (getattr(self.dataset, 'metainfo', None) or {}).get('classes')
        if boxes is not None or classes is None:
            return boxes
        ignored = getattr(self.dataset, 'ignore_index', 255)
        return wrong_labels.labels_of(sample, len(classes), ignored)

    def _after_epoch(self, runner: Any, mode: str = 'train') -> None:
        """Collect the records of all processes, as their metrics have just been."""
        if mode != 'train' and self.dataset is not None:
            records = collect_results(self.records, len(self.dataset), device='gpu')  # or gloo
            self.records = [record for record in records or () if record is not None]

    def after_run(self, runner: Any) -> None:
        """Draw what is kept, in the first process."""
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
        metainfo = self.dataset.metainfo
        classes = [str(name) for name in metainfo['classes']]
        if not isinstance(self.records[0], wrong_labels.LabelledImage):
            found = wrong_boxes.compare_boxes(self.records, self.dataset)
            if not len(found.true_labels):
                return
            score = wrong_boxes.best_score(found)
            partner = wrong_boxes.partners(found, score)
            matrix = wrong_boxes.confusion(found, partner, len(classes))
            curves, growth = wrong_boxes.costs(found, len(classes))
            title = f'{self.title}, detections with a score of at least {score:.2f} (best F1)'
            names = [*classes, 'background']
            figure = mistakes_picture.draw_confusion(matrix, names, title, curves)
            tiles = mistakes_picture.worst_boxes(found, partner, classes, WORST)
            legend = mistakes_picture.BOX_LEGEND
            missing = 100 - 100 * float(np.nanmean(curves))
            line = wrong_boxes.cost_line(missing, growth, matrix, classes)
        else:
            unit = self.records[0].unit
            matrix = wrong_labels.matrix_of(self.records, len(classes))
            title = f'{self.title}, numbers of {unit}'
            figure = mistakes_picture.draw_confusion(matrix, classes, title)
            palette = class_colours(metainfo.get('palette'), len(classes))
            tiles, legend = wrong_labels.worst_labels(self.records, classes, palette, WORST)
            line = wrong_labels.cost_line(matrix, classes, unit)
        write_figure(folder / CONFUSION, figure, dpi=110)
        files = CONFUSION
        if tiles:
            files = f'{MISTAKES}, {CONFUSION}'
            pixels = mistakes_picture.sheet(tiles, f'The worst images of {title}', legend)
            content = encoded(pixels, 'jpeg', quality=90, subsampling=0)
            write_atomically(folder / MISTAKES, content)
        else:
            (folder / MISTAKES).unlink(missing_ok=True)  # of an earlier evaluation
        info(f'costs most   {line}; see {files} in {folder}')
