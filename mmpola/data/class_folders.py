"""A data set of images in class folders or tar files, augmented by timm."""

from __future__ import annotations

from typing import Any

from mmengine.structures import BaseDataElement
from PIL import Image
from timm.data import create_transform
from torch.utils.data import Dataset

from mmpola.data.image_index import build_index
from mmpola.data.read_image import rgb_image
from mmpola.registry import DATASETS

MAX_UNREADABLE_IN_A_ROW = 16
"""If so many images in a row cannot be read, the data set itself must be unreachable."""


@DATASETS.register_module()
class ClassFolders(Dataset[dict[str, Any]]):
    """Images as ROOT/CLASS/IMAGE, or the same in tar files (see `image_index`), with timm's transforms.

    An item is dict(inputs=float tensor [3, H, W], data_samples=BaseDataElement) with the int `gt_label` and, in the
    metainfo, `img_path`.

    An image that cannot be read is replaced, and the metainfo `unreadable`, a tuple of paths, names it: in training the
    next readable image, with its own label, takes its place; in evaluation a blank one, which `Accuracy` ignores.

    Args:
        root: folder or tar file.
        training: use random transforms.
        transform: arguments of timm.data.create_transform, such as `input_size`.
        classes: what defines the labels: the training folder or tar file, a text file with one class name per line, or
            'imagenet-1k', of whose classes some may be absent. None: the data set's own classes, in natural order.
        strict: raise an error for an image that cannot be read.

    Raises:
        ValueError: a folder, classes or images are missing; the message lists all problems.
    """

    def __init__(
        self,
        root: str,
        *,
        training: bool,
        transform: dict[str, Any],
        classes: str | None = None,
        strict: bool = False,
    ) -> None:
        self.images = build_index(str(root), classes)
        self.training = training
        self.strict = strict
        self.transform = create_transform(is_training=training, **transform)
        self.metainfo = {'classes': self.images.classes}

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return an item.

        Raises:
            OSError: the image cannot be read and `strict` is on, or too many in a row cannot be read.
        """
        index, image, unreadable = self._readable(range(len(self))[index])
        sample = BaseDataElement(
            metainfo={'img_path': self.images.name(index)}, gt_label=int(self.images.labels[index])
        )
        if unreadable:
            sample.set_metainfo({'unreadable': tuple(unreadable)})
        return {'inputs': self.transform(image), 'data_samples': sample}

    def _readable(self, index: int) -> tuple[int, Image.Image, list[str]]:
        """Return (index, pixels) of an image or of its replacement, and the paths that could not be read."""
        failed: list[str] = []
        while True:
            try:
                return index, rgb_image(self.images.read(index)), failed
            except MemoryError:
                raise
            except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error …
                failed.append(self.images.name(index))
                if self.strict:
                    raise OSError(f'{failed[-1]}: cannot be read ({error!r})') from error
                if not self.training:
                    return index, Image.new('RGB', (1, 1)), failed
                if len(failed) == min(MAX_UNREADABLE_IN_A_ROW, len(self)):
                    raise OSError(
                        f'{len(failed)} images in a row cannot be read, the last is {failed[-1]} ({error!r})'
                    ) from error
                index = (index + 1) % len(self)
