"""Read images as evaluation does: by the config's test pipeline, without the annotations."""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, FUNCTIONS, TRANSFORMS, init_default_scope
from numpy.typing import NDArray
from PIL import UnidentifiedImageError
from timm.data import create_transform
from torch import nn

from mmpola.images import IMAGE_SUFFIXES, is_stored_turned, loaded_as_rgb, rgb_image
from mmpola.messages import UsageError, first_line
from mmpola.openmmlab.config.build import validate_config
from mmpola.openmmlab.config.contents import inner_datasets, type_name
from mmpola.openmmlab.config.read import load_config
from mmpola.openmmlab.config.types import scope, type_class
from mmpola.pretraining.data_config import evaluation_transform

FIRST_IMAGES = 8
"""Number of loaded images of a data set whose values are looked at."""


def load_image_config(args: argparse.Namespace) -> tuple[Config, nn.Module]:
    """Read and check the config of a detector, segmenter or classifier.

    Args:
        args: of a script, see `load_config`.

    Returns:
        (the config, its model).

    Raises:
        UsageError: the config cannot be read or has a mistake.
    """
    cfg = load_config(args)
    return cfg, validate_config(cfg)


class LoadedImage(NamedTuple):
    """An image that has been read.

    Attributes:
        pixels: as loaded, before any other step, [H, W] or [H, W, C] of any dtype; colours are BGR,
            as OpenMMLab's loaders return them.
        item: what the transforms made of it, an item of a batch.
    """

    pixels: NDArray[Any]
    item: dict[str, Any]

    def plain_view(self) -> dict[str, Any]:
        """Return the item; of test-time augmentation the first view that is not flipped."""
        samples = self.item.get('data_samples')
        if not isinstance(samples, list):
            return self.item
        flips = [bool(sample.get('flip')) for sample in samples]
        number = flips.index(False) if False in flips else 0
        return {key: views[number] for key, views in self.item.items()}

    @property
    def picture(self) -> NDArray[np.uint8]:
        """The image to draw on, RGB uint8 [H, W, 3], see `loaded_as_rgb`."""
        return loaded_as_rgb(self.pixels)


class ImageReader:
    """Reads single images for a model.

    Attributes:
        collate_fn: config of the function that makes a batch of items.
        metainfo: of the data set, such as its classes.
        suffixes: of image files, in lower case.
        first: (file, pixels) of the first images that were read.
        count: number of images that were read.
        turned: those whose EXIF rotation was ignored.
    """

    def __init__(self, collate_fn: str) -> None:
        self.collate_fn: dict[str, Any] = {'type': collate_fn}
        self.first: list[tuple[Path, NDArray[Any]]] = []
        self.metainfo: dict[str, Any] = {}
        self.suffixes = set(IMAGE_SUFFIXES)
        self.count = 0
        self.turned: list[Path] = []

    def load(self, path: Path) -> LoadedImage:
        """Read a file.

        Raises:
            UsageError: it cannot be read; the message does not name it.
        """
        image = self._load(path)
        self.count += 1
        if len(self.first) < FIRST_IMAGES:
            self.first.append((path, image.pixels))
        return image

    def _load(self, path: Path) -> LoadedImage:
        raise NotImplementedError

    def collate(self, item: dict[str, Any]) -> Any:
        """Return a batch of one item."""
        settings = dict(self.collate_fn)
        function = settings.pop('type')
        if isinstance(function, str):
            function = FUNCTIONS.get(function)  # in every scope, as MMEngine does
        return function([item], **settings)


class ClassFoldersReader(ImageReader):
    """Reads images as `ClassFolders` does.

    Args:
        transform: arguments of timm.data.create_transform.

    Attributes:
        steps: the transforms of an RGB image, in their order.
    """

    def __init__(self, transform: dict[str, Any]) -> None:
        super().__init__('default_collate')
        self._transform = create_transform(is_training=False, **transform)
        self.steps: list[Callable[[Any], Any]] = self._transform.transforms

    def _load(self, path: Path) -> LoadedImage:
        try:
            image = rgb_image(path.read_bytes())
        except UnidentifiedImageError as error:
            raise UsageError('not an image') from error
        except Exception as error:  # decoders raise many types for a broken file
            raise UsageError(first_line(error)) from error
        if is_stored_turned(path):
            self.turned.append(path)
        pixels = np.asarray(image)[..., ::-1]
        return LoadedImage(pixels, {'inputs': self._transform(image)})


class PipelineReader(ImageReader):
    """Reads images by the test pipeline of a data set, without the steps that load annotations.

    Args:
        dataset: config of the data set.

    Attributes:
        images: files of the data set; none if it cannot be read.
    """

    def __init__(self, dataset: dict[str, Any]) -> None:
        super().__init__('pseudo_collate')
        self._infos = DataInfos(dataset)
        self.images = self._infos.images
        self.metainfo = self._infos.metainfo
        self.suffixes |= self._infos.suffixes
        self._loaded: NDArray[Any] | None = None
        steps = self._image_steps(copy.deepcopy(dataset['pipeline']))
        self._steps = [TRANSFORMS.build(step) for step in steps]

    def _load(self, path: Path) -> LoadedImage:
        self._loaded = None
        item = self._infos.of(path)
        for step in self._steps:
            name = type(step).__name__
            try:
                item = step(item)
            except Exception as error:  # a loader can raise anything
                raise UsageError(f'{name}: {first_line(error)}') from error
            if item is None:
                raise UsageError(f'{name} returned nothing')
            self._keep_loaded(item)
        if self._loaded is None or 'inputs' not in item:
            names = [type(step).__name__ for step in self._steps]
            raise UsageError(
                'test_dataloader.dataset.pipeline: expected a step that sets img and one that '
                f'returns inputs, got {names}'
            )
        return LoadedImage(self._loaded, item)

    def _keep_loaded(self, item: dict[str, Any]) -> dict[str, Any]:
        """Keep a copy of the first `img`: later steps replace it or write into it."""
        if self._loaded is None and item.get('img') is not None:
            self._loaded = np.array(item['img'])
        return item

    def _image_steps(self, steps: Iterable[Any]) -> list[Any]:
        """Leave out the steps that load annotations, also those inside of other steps.

        Args:
            steps: configs of steps, or lists of them, the alternatives of TestTimeAug.
        """
        kept: list[Any] = []
        for step in steps:
            if isinstance(step, (list, tuple)):
                step = self._image_steps(step)
                if not step:
                    continue
            elif loads_annotations(step['type']):
                continue
            elif 'transforms' in step:
                step['transforms'] = self._image_steps(step['transforms'])
                if type_name(step['type']) == 'TestTimeAug':
                    views = [
                        [alternatives, [self._keep_loaded]] for alternatives in step['transforms']
                    ]
                    step['transforms'] = [part for view in views for part in view]
            kept.append(step)
        return kept


def open_reader(cfg: Config) -> ImageReader:
    """Return the reader of a detector's, segmenter's or classifier's images.

    Raises:
        UsageError: its test data has no pipeline.
    """
    init_default_scope(scope(cfg))
    loader = cfg.get('test_dataloader') or {}
    dataset: dict[str, Any] = {}
    if 'dataset' in loader:
        dataset = next(inner_datasets(loader['dataset']))
    reader: ImageReader
    if dataset.get('pipeline'):
        reader = PipelineReader(dataset)
    elif type_name(cfg.model.type) == 'ImageClassifier':
        reader = ClassFoldersReader(evaluation_transform(cfg))
    else:
        raise UsageError('test_dataloader.dataset.pipeline: expected the steps that read an image')
    if 'collate_fn' in loader:
        reader.collate_fn = loader['collate_fn']
    return reader


def loads_annotations(step_type: str | type) -> bool:
    """Whether a step of a pipeline loads or reads annotations, which a new image does not have."""
    step_class = type_class(step_type, TRANSFORMS)
    names = [type_name(step_type)]
    if isinstance(step_class, type):
        names += [base.__name__ for base in step_class.__mro__]
    return any('Annotation' in name or name == 'LoadProposals' for name in names)


class DataInfos:
    """What a data set says about its images besides their files.

    An image of the data set has what `get_data_info` returns for it. Other images have the entries
    that are equal for all images of the data set, such as a setting that an own loader reads.

    Args:
        dataset: config of the data set; its files may be absent.

    Attributes:
        metainfo: of the data set, such as its classes.
        suffixes: of the data set's files, in lower case.
        images: the files.
    """

    def __init__(self, dataset: dict[str, Any]) -> None:
        self.images: list[Path] = []
        self._numbers: dict[str, int] = {}
        self._common: dict[str, Any] = {}
        suffix = str(dataset.get('img_suffix', '')).lower()
        self.suffixes = {suffix} - {''}
        settings = {**dataset, 'pipeline': [], 'test_mode': True}
        is_there = True
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # pycocotools tells what it does
                self._dataset = DATASETS.build(settings)
        except Exception as error:  # data sets raise anything
            is_there = False
            if not isinstance(error, OSError):  # weights are used without the data, too
                print(f'test_dataloader.dataset: its images are unknown: {first_line(error)}')
            self._dataset = DATASETS.build({**settings, 'lazy_init': True})
        self.metainfo = self._dataset.metainfo
        if not is_there:
            return
        for number in range(len(self._dataset)):
            info = self._dataset.get_data_info(number)
            path = str(info.get('img_path', ''))
            self._numbers[os.path.abspath(path)] = number
            self.images.append(Path(path))
            self.suffixes.add(Path(path).suffix.lower())
            if number == 0:
                self._common = info
            for key in list(self._common):
                # Pickled, as there may be arrays inside, whose == has many answers.
                common = pickle.dumps(self._common[key])
                if key not in info or pickle.dumps(info[key]) != common:
                    del self._common[key]

    def of(self, path: Path) -> dict[str, Any]:
        """Return what a pipeline gets for a file."""
        number = self._numbers.get(os.path.abspath(path))
        if number is not None:
            found: dict[str, Any] = self._dataset.get_data_info(number)
            return found
        return {**copy.deepcopy(self._common), 'img_path': str(path), 'img_id': 0}


def channels_note(
    images: Iterable[tuple[str | Path, NDArray[Any]]], in_channels: int
) -> str | None:
    """Describe the first image that was loaded with other channels than the backbone reads.

    Args:
        images: (file, pixels [H, W] or [H, W, C] as the pipeline loaded them).
        in_channels: channels that the backbone reads.
    """
    notes = (_channels_note(path, pixels, in_channels) for path, pixels in images)
    return next((note for note in notes if note is not None), None)


def sixteen_bits_note(images: Iterable[tuple[str | Path, NDArray[Any]]]) -> str | None:
    """Describe a loader whose 8 bits, or the usual mean and std, leave nothing of 16-bit files.

    Args:
        images: (file, pixels [H, W] or [H, W, C] as the pipeline loaded them) of the first images.
    """
    images = list(images)
    if not images or not all(pixels.size > 0 for _, pixels in images):
        return None
    largest = max(pixels.max() for _, pixels in images)
    pixels = images[0][1]
    is_whole = pixels.dtype.kind in 'iu' or bool((pixels == np.round(pixels)).all())
    # 12 of 16 bits become 4 of 8: at most 15 of 255.
    is_8_bit = is_whole and pixels.dtype.itemsize != 2 and largest < 32
    is_16_bit = pixels.dtype == np.uint16 and largest < 0.01 * 65535
    if not (is_8_bit or is_16_bit) or not all(_has_16_bits(path) for path, _ in images):
        return None
    limit = 255 if is_8_bit else 65535
    return (
        f'the largest value of the first 16-bit images ({Path(images[0][0]).name} …) is '
        f'{largest:g} of {limit} as loaded; write files whose values fill 8 bits, or, in a '
        "pipeline, load them with color_type='unchanged' and to_float32=True, and set mean and std "
        'of data_preprocessor to the mean and std of the values'
    )


def turned_note(turned: Sequence[str | Path], count: int) -> str | None:
    """Describe photographs of class folders whose EXIF rotation is ignored; None without one.

    Args:
        turned: their files.
        count: number of all photographs that were read.
    """
    if not turned:
        return None
    return (
        f'{len(turned)} of {count} photographs are stored turned (EXIF), which class folders '
        f'ignore ({Path(turned[0]).name} …): turn the pixels, for example by mogrify -auto-orient'
    )


@contextlib.contextmanager
def channels_explained(path: Path, image: LoadedImage, in_channels: int) -> Iterator[None]:
    """Raise UsageError instead of any error, if the image has other channels than the model."""
    try:
        yield
    except Exception as error:
        note = _channels_note(path, image.pixels, in_channels)
        if note is None:
            raise
        raise UsageError(note) from error


def _channels_note(path: str | Path, pixels: NDArray[Any], in_channels: int) -> str | None:
    channels = np.atleast_3d(pixels).shape[2]
    if channels == in_channels:
        return None
    remedy = 'set in_channels, or color_type of that step'
    if Path(path).suffix.lower() in ('.tif', '.tiff'):  # OpenCV reads the first of four grey bands
        remedy += " and imdecode_backend='tifffile'"
    return (
        f'expected {in_channels} channels (model.backbone.in_channels), got {channels} from the '
        f'step that loads {Path(path).name}; {remedy}'
    )


def _has_16_bits(path: str | Path) -> bool:
    """Whether a file has 16 bits per channel, whatever the config's loader made of them."""
    stored = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    return stored is not None and stored.dtype == np.uint16
