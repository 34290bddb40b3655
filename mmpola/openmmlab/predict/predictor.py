"""A config's model as a function from an image to a prediction: a drawing, and results to write."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import VISUALIZERS
from numpy.typing import NDArray
from torch import nn

from mmpola.files import write_together
from mmpola.images import ImageFile, class_colours, encoded, place_names_quickly
from mmpola.messages import UsageError, listed
from mmpola.openmmlab.config.build import unwrapped
from mmpola.openmmlab.config.contents import (
    IMAGENET,
    class_list_problem,
    inner_datasets,
    input_channels,
    predicted_classes,
)
from mmpola.openmmlab.config.types import library
from mmpola.openmmlab.predict.drawing import draw_classes
from mmpola.openmmlab.predict.reader import (
    ImageReader,
    LoadedImage,
    channels_explained,
)
from mmpola.openmmlab.predict.results import (
    INSTANCE_OFFSET,
    areas_by_class,
    counts_by_class,
    instances_as_json,
    label_map,
    name_in_words,
    panoptic_segments,
)
from mmpola.openmmlab.start.fit import TrainingCheckpoint
from mmpola.pretraining.class_folders import class_names
from mmpola.pretraining.data_config import class_source
from mmpola.pretraining.image_classifier import ImageClassifier

BEST_CLASSES = 5
"""Number of classes that are written and drawn for a classifier."""

VISUALIZER_NUMBERS = itertools.count()


class Prediction(NamedTuple):
    """What a model predicts for an image.

    Attributes:
        drawing: RGB uint8 [H, W, 3].
        results: content of each file by its suffix: a dict for '.json', pixels for '.png'.
        summary: what is found, in a few words.
        best_score: the highest score of a detector's instances; None without instances.
    """

    drawing: NDArray[np.uint8]
    results: dict[str, dict[str, Any] | NDArray[Any]]
    summary: str
    best_score: float | None = None

    def write(self, files: dict[str, Path]) -> None:
        """Write the drawing and the results to what `result_files` returns: all of them or none.

        Raises:
            OSError: the disk is full, or a name is too long.
        """
        contents = {files['.jpg']: encoded(self.drawing, 'jpeg', quality=95)}
        for suffix, content in self.results.items():
            if isinstance(content, dict):
                contents[files[suffix]] = json.dumps(content).encode()
            else:
                contents[files[suffix]] = encoded(content, 'png')
        write_together(contents)


def result_files(image: ImageFile, out: Path) -> dict[str, Path]:
    """Return the files that an image's prediction may have in the folder of results, by suffix."""
    return {
        '.jpg': image.output(out / 'vis', '.jpg'),
        '.json': image.output(out / 'preds', '.json'),
        '.png': image.output(out / 'preds', '.png'),
    }


class Predictor:
    """A config's model as a function of image files.

    Args:
        cfg: of a detector, segmenter or classifier.
        model: of the config, with the weights of the checkpoint, in eval mode, perhaps inside of a
            wrapper for test-time augmentation.
        reader: from `open_reader`.
        checkpoint: has the class names; else they come from the test data.
        threshold: score above which a detection is drawn; the results have all of them.
    """

    def __init__(
        self,
        cfg: Config,
        model: Any,
        reader: ImageReader,
        checkpoint: TrainingCheckpoint,
        threshold: float = 0.3,
    ) -> None:
        self.cfg = cfg
        self.model = model
        self.reader = reader
        self.threshold = threshold
        if type(model).__name__ == 'DetTTAModel':
            model.module.register_forward_hook(drop_masks)  # it merges boxes and stops at masks
        if isinstance(unwrapped(model), ImageClassifier):
            self.meta = {'classes': classifier_classes(cfg, checkpoint)}
        else:
            self.meta = detector_meta(cfg, checkpoint, reader.metainfo)
            self.visualizer = open_visualizer(cfg, self.meta)

    def __call__(self, path: Path) -> Prediction:
        """Predict an image file.

        Raises:
            UsageError: it cannot be read; the message does not name it.
        """
        image = self.reader.load(path)
        channels = input_channels(self.cfg.model)
        with torch.no_grad(), channels_explained(path, image, channels):
            (sample,) = self.model.test_step(self.reader.collate(image.item))
        if 'pred_score' in sample:
            return self._classified(path, image, sample)
        return self._detected(path, image, sample)

    def _classified(self, path: Path, image: LoadedImage, sample: Any) -> Prediction:
        classes = self.meta['classes']
        scores, labels = sample.pred_score.cpu().topk(min(BEST_CLASSES, len(classes)))
        best = []
        for label, score in zip(labels.tolist(), scores.tolist(), strict=True):
            name = name_in_words(classes[label])
            best.append({'label': label, 'class': classes[label], 'name': name, 'score': score})
        height, width = image.pixels.shape[:2]
        found = {'image': str(path), 'width': width, 'height': height, 'classes': best}
        summary = f'{best[0]["name"]} {best[0]["score"]:.1%}'
        return Prediction(draw_classes(image.picture, best), {'.json': found}, summary)

    def _detected(self, path: Path, image: LoadedImage, sample: Any) -> Prediction:
        """Return the instances, the segments or the label of each pixel, whatever there is."""
        classes = self.meta['classes']
        results: dict[str, Any] = {}
        best_score = None
        options = {}
        summary = ''
        if 'pred_instances' in sample:
            instances = sample.pred_instances
            results['.json'] = instances_as_json(instances)
            best_score = max(results['.json']['scores'], default=0.0)
            options['pred_score_thr'] = self.threshold
            drawn = instances.labels[instances.scores > self.threshold]
            summary = counts_by_class(drawn, classes)
        if 'pred_panoptic_seg' in sample:
            ids = sample.pred_panoptic_seg.sem_seg.cpu().numpy()[0]
            results['.png'], segments = panoptic_segments(ids, classes)
            results['.json'] = {**results.get('.json', {}), 'segments_info': segments}
            summary = areas_by_class(sample.pred_panoptic_seg.sem_seg % INSTANCE_OFFSET, classes)
        elif 'pred_sem_seg' in sample:
            labels = sample.pred_sem_seg.data.long()  # mmseg has floats if out_channels is 1
            sample.pred_sem_seg.data = labels.reshape(1, *labels.shape[-2:])
            results['.png'] = label_map(labels, len(classes))
            summary = areas_by_class(labels, classes)
        if not results:
            raise UsageError(
                f'{type(self.model).__name__}: expected instances, segments, labels of pixels or '
                f'classes, got {listed(sample.keys())}'
            )
        self.visualizer.add_datasample(path.name, image.picture, sample, draw_gt=False, **options)
        return Prediction(self.visualizer.get_image(), results, summary, best_score)


def drop_masks(_model: nn.Module, _inputs: Any, samples: Any) -> None:
    """Remove the masks of a detector's instances."""
    for sample in samples:
        if 'masks' in sample.pred_instances:
            del sample.pred_instances.masks


def detector_meta(
    cfg: Config, checkpoint: TrainingCheckpoint, config_meta: dict[str, Any]
) -> dict[str, Any]:
    """Return class names and palette of a detector or segmenter: the checkpoint's, else the data's.

    What neither of them has is made up: numbers, and colours that are always the same.
    """
    checkpoint_meta = checkpoint.meta.get('dataset_meta') or {}
    classes = checkpoint.classes or config_meta.get('classes')
    if not classes:
        count = max([number for _, number in predicted_classes(cfg.model)], default=1)
        classes = [f'class {number}' for number in range(count)]
    named = config_meta.get('classes')
    if checkpoint.classes and named:
        where = 'test_dataloader.dataset'
        problem = class_list_problem(checkpoint.classes, checkpoint.path, named, where)
        if problem is not None:
            print(f'{problem}; predictions have the names of the checkpoint')
    palette = checkpoint_meta.get('palette') or config_meta.get('palette')
    return {'classes': classes, 'palette': class_colours(palette, len(classes))}


def open_visualizer(cfg: Config, meta: dict[str, Any]) -> Any:
    """Return the config's visualizer, which writes nothing itself."""
    visualizer = 'mmdet.DetLocalVisualizer'
    if library(cfg) == 'mmseg':
        visualizer = 'mmseg.SegLocalVisualizer'
    settings = {'type': visualizer, **(cfg.get('visualizer') or {})}
    # MMEngine would return an earlier visualizer of the same name.
    settings.update(vis_backends=None, name=f'of predictions {next(VISUALIZER_NUMBERS)}')
    visualizer = VISUALIZERS.build(settings)
    visualizer.dataset_meta = meta
    place_names_quickly(visualizer)
    return visualizer


def classifier_classes(cfg: Config, checkpoint: TrainingCheckpoint) -> tuple[str, ...]:
    """Return a classifier's class names: from the checkpoint, else from `class_source`.

    If nothing defines as many names as the classifier has classes, numbers take their place.
    """
    if checkpoint.classes:  # `read_checkpoint_for` has compared their number with the model's
        return tuple(checkpoint.classes)
    count = cfg.model.num_classes
    dataset = next(inner_datasets(cfg.test_dataloader.dataset))
    source = class_source(dataset, count)
    if not isinstance(source, str) or source == IMAGENET or Path(source).exists():
        names = class_names(source)
        if len(names) == count:
            return tuple(names)
    print(f'{checkpoint.path}: has no class names; {source} does not name {count} classes')
    return tuple(f'class {number}' for number in range(count))
