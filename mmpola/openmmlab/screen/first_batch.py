"""Draws the first training batch as the network gets it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from torch import Tensor, nn

from mmpola.files import write_atomically
from mmpola.images import encoded
from mmpola.messages import first_line, info
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.processes import is_killed_worker
from mmpola.openmmlab.run.seeding import unchanged_generators
from mmpola.openmmlab.screen.batch_picture import draw_batch

FIRST_BATCH_FILE = 'first_batch.jpg'
"""Name of the picture in the work dir."""


class FirstBatchHook(Hook):
    """Draws the first training batch to `first_batch.jpg` in the work dir.

    The picture shows what the network gets: images after augmentation, normalisation (which is
    undone for the picture) and padding, with boxes and masks, label maps, or class names. At most
    16 images of the first process are drawn. A resumed run keeps the picture that is there.
    Batches that are not images, such as texts, are not drawn.

    Training is not affected: no sample is read again, generators keep their states, and a drawing
    that fails is a line in the log.
    """

    priority = 'ABOVE_NORMAL'  # drawn before ScreenHook starts its clock

    def before_train(self, runner: Any) -> None:
        """Draw the first batch when it has been preprocessed."""
        path = Path(runner.work_dir, FIRST_BATCH_FILE)
        is_resumed = runner.iter > 0
        if not is_main_process() or (is_resumed and path.exists()):
            return

        def draw(batch: Any) -> None:
            try:
                inputs = batch['inputs']
                if not isinstance(inputs, Tensor) or inputs.dim() != 4:
                    return
                dataset = runner.train_dataloader.dataset
                preprocessor = unwrapped(runner.model).data_preprocessor
                with unchanged_generators():
                    picture = draw_batch(batch, preprocessor, dataset)
                    pixels = np.asarray(picture)
                    write_atomically(path, encoded(pixels, 'jpeg', quality=92))
            except Exception as error:  # visualizers and data sets raise exceptions of any type
                if is_killed_worker(error):
                    raise
                info(f'{path}: not drawn ({first_line(error)}); training goes on')

        after_preprocessing(runner.model, draw)


def after_preprocessing(model: nn.Module, receive: Callable[[Any], None]) -> None:
    """Call a function once with the next batch that the model's preprocessor returns.

    Args:
        model: of a Runner; one without a `data_preprocessor` is left as it is.
        receive: gets what the preprocessor returns, usually dict(inputs=[B, C, H, W],
            data_samples=list), and must not change it.
    """
    preprocessor = getattr(unwrapped(model), 'data_preprocessor', None)
    if not isinstance(preprocessor, nn.Module):
        return

    def give(module: nn.Module, inputs: Any, output: Any) -> None:
        handle.remove()
        receive(output)

    handle = preprocessor.register_forward_hook(give)
