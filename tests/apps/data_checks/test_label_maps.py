"""Problems of data sets of label maps, on generated data with one error each."""

import numpy as np
from PIL import Image

from tests.helpers.refusals import problems


def test_labels_beyond_the_classes_are_found_by_the_fast_check(segmentation, ade):
    folder = ade / 'annotations' / 'training'
    first, second, third, *_ = sorted(folder.iterdir())
    for path, label in ((first, 200), (second, 7), (third, 255)):  # 255 is ignored
        labels = np.array(Image.open(path))
        labels[:2, :3] = label
        Image.fromarray(labels).save(path)
    assert problems(segmentation) == [
        f'{folder}: label maps with labels other than 0 … 6 and 255 (6 classes, reduce_zero_label=True) (2): '
        f'{first.name} (label 200), {second.name} (label 7)'
    ]
    segmentation.train_dataloader.dataset.reduce_zero_label = False
    assert (
        'labels other than 0 … 5 and 255 (6 classes, reduce_zero_label=False)'
        in problems(segmentation)[0]
    )


def test_label_maps_of_the_wrong_kind(segmentation, ade):
    folder = ade / 'annotations' / 'training'
    colours, small, broken, *_ = sorted(folder.iterdir())
    Image.new('RGB', (96, 80)).save(colours)
    Image.new('L', (48, 40)).save(small)
    broken.write_bytes(b'')
    assert problems(segmentation) == [
        f'{folder}: label maps that do not have one channel of 8 bits (1): {colours.name} (RGB)',
        f'{folder}: label maps whose size differs from their image as loaded (1): {small.name} '
        '(48 x 40, image 96 x 80)',
        f'{folder}: label maps that cannot be read (1): {broken.name} (empty file)',
    ]


def test_images_and_label_maps_come_in_pairs(segmentation, ade):
    images, maps = ade / 'images' / 'training', ade / 'annotations' / 'training'
    first, second, *_ = (path.stem for path in sorted(images.iterdir()))
    (images / f'{first}.jpg').unlink()
    (maps / f'{second}.png').unlink()
    assert problems(segmentation) == [
        f'{images}: images without a label map in {maps} (1): {second}.jpg',
        f'{maps}: label maps without an image in {images} (1): {first}.png',
    ]
    for path in list(images.iterdir()):
        path.rename(path.with_suffix('.jpeg'))
    assert problems(segmentation)[0] == (
        f'{images}: expected images with the suffix .jpg, got '
        + ', '.join(sorted(path.name for path in images.iterdir())[:5])
        + ' and 6 more'
    )
