"""Draw the predictions of a test, each image into a file of its own."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.visualization import Visualizer

from mmpola.files import write_together
from mmpola.images import ImageFile, check_outputs, encoded, place_names_quickly
from mmpola.messages import UsageError, counted, first_line, info
from mmpola.openmmlab.processes import is_killed_worker
from mmpola.openmmlab.results.names import image_names


class KeptImage:
    """A backend of a visualizer that keeps the newest image instead of writing it.

    Attributes:
        image: RGB uint8 [H, W, 3].
    """

    def __init__(self) -> None:
        self.image: Any = None

    def add_image(self, name: str, image: Any, step: int = 0, **_: Any) -> None:
        """Keep an image."""
        self.image = image


class ShowHook(Hook):
    """Draws each image of a test into `folder`/NAME.jpg, where NAME is its path in the data.

    A hook of mmdet or mmseg draws. Their own files are named by the image's base name, which
    images in different folders may share; `mmpola.images.name_results` gives NAME.

    An image that cannot be drawn or written is named in a line and does not end the test; the exit
    status is 1 then.

    Args:
        folder: for the drawings.
        drawing: config of the hook that draws, such as mmdet's DetVisualizationHook.

    Attributes:
        drawn: number of images.
        failed: number of images that could not be drawn or written.

    Raises:
        UsageError: `drawing` does not draw with MMEngine's visualizer, or a drawing would replace
            an image of the data set.
    """

    priority = 'LOWEST'  # its end of the process comes after the metrics are written

    def __init__(self, folder: str, drawing: dict[str, Any]) -> None:
        settings = {**drawing, 'draw': True, 'interval': 1}
        settings.pop('test_out_dir', None)
        self.folder = Path(folder)
        self.drawing = HOOKS.build(settings)
        if not isinstance(getattr(self.drawing, '_visualizer', None), Visualizer):
            raise UsageError(
                '--show-dir: expected a hook in default_hooks.visualization that draws with '
                f"MMEngine's visualizer, got {type(self.drawing).__name__}"
            )
        self.result = KeptImage()
        self.drawing._visualizer = copy.copy(self.drawing._visualizer)
        self.drawing._visualizer._vis_backends = {'result': self.result}
        place_names_quickly(self.drawing._visualizer)
        self.drawn = 0
        self.failed = 0
        self.names: dict[str, Path] = {}
        self.used: set[Path] = set()

    def before_test(self, runner: Any) -> None:
        """Name the drawings."""
        self.names = image_names(runner.test_dataloader.dataset)
        images = [ImageFile(Path(image), name) for image, name in self.names.items()]
        outputs = [image.output(self.folder, '.jpg') for image in images]
        check_outputs(outputs, True, images, '--show-dir')

    def after_test_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Draw the images of a batch."""
        self.drawing._visualizer.dataset_meta = runner.visualizer.dataset_meta
        without_training = copy.copy(runner)
        without_training._train_loop = None  # mmseg asks for its step, which builds its data set
        for sample in outputs:
            try:
                self.result.image = None
                self.drawing.after_test_iter(without_training, batch_idx, data_batch, [sample])
                self._write(sample.img_path)
                self.drawn += 1
            except Exception as error:  # of any type, as hooks of other packages draw
                if is_killed_worker(error):
                    raise
                self.failed += 1
                reason = str(error) if isinstance(error, UsageError) else first_line(error)
                runner.logger.warning(f'not drawn: {sample.img_path}: {reason}')

    def _write(self, image: str) -> None:
        """Write the drawing of an image; a number follows its name if the image comes again."""
        if self.result.image is None:
            raise UsageError(f'{type(self.drawing).__name__} has drawn nothing')
        path = Path(os.path.abspath(image))
        name = self.names.get(image, path.relative_to(path.anchor))  # not all data sets list images
        result = name
        number = 1
        while result in self.used:
            number += 1
            result = name.with_name(f'{name.name}_{number}')
        self.used.add(result)
        file = ImageFile(Path(image), result).output(self.folder, '.jpg')
        write_together({file: encoded(self.result.image, 'jpeg', quality=95)})

    def after_test(self, runner: Any) -> None:
        """Say how many images are drawn; end the process if some are not."""
        line = f'{self.folder}: {counted(self.drawn, "image")} drawn'
        if self.failed == 0:
            info(line)
            return
        runner.logger.error(f'{line}, {self.failed} not drawn (exit status 1)')
        raise SystemExit(1)
