"""Problems of data sets of label maps, on generated data with one error each."""

import numpy as np
from PIL import Image

from tests.helpers.refusals import assert_lines, problems


def test_labels_beyond_the_classes_are_found_by_the_fast_check(segmentation, ade):
    folder = ade / 'annotations' / 'training'
    first, second, third, *_ = sorted(folder.iterdir())
    for path, label in ((first, 200), (second, 7), (third, 255)):  # 255 is ignored
        labels = np.array(Image.open(path))
        labels[:2, :3] = label
        Image.fromarray(labels).save(path)
    found = f'(2): {first.name} (label 200), {second.name} (label 7)'
    assert_lines(problems(segmentation), (folder, '0 … 6 and 255', found))
    assert_lines(problems(segmentation, whole=True), (folder, '0 … 6 and 255', found))
    segmentation.train_dataloader.dataset.reduce_zero_label = False
    assert '0 … 5 and 255' in problems(segmentation)[0]


def test_label_maps_of_the_wrong_kind(segmentation, ade):
    folder = ade / 'annotations' / 'training'
    colours, small, broken, *_ = sorted(folder.iterdir())
    Image.new('RGB', (96, 80)).save(colours)
    Image.new('L', (48, 40)).save(small)
    broken.write_bytes(b'')
    assert_lines(
        problems(segmentation),
        (folder, 'one channel', f'(1): {colours.name} (RGB)'),
        (folder, 'size differs', f'(1): {small.name} (48 x 40, image 96 x 80)'),
        (folder, 'cannot be read', f'(1): {broken.name} (empty file)'),
    )


def test_images_are_read_in_the_whole_check(segmentation, ade):
    folder = ade / 'images' / 'training'
    broken = sorted(folder.iterdir())[2]
    broken.write_bytes(b'')
    assert_lines(
        problems(segmentation, whole=True),
        (folder, 'cannot be read', f'(1): {broken.name} (empty file)'),
    )


def test_images_and_label_maps_come_in_pairs(segmentation, ade):
    images = ade / 'images' / 'training'
    maps = ade / 'annotations' / 'training'
    first, second, *_ = (path.stem for path in sorted(images.iterdir()))
    (images / f'{first}.jpg').unlink()
    (maps / f'{second}.png').unlink()
    assert_lines(
        problems(segmentation),
        (images, str(maps), f'(1): {second}.jpg'),
        (maps, str(images), f'(1): {first}.png'),
    )
    for path in list(images.iterdir()):
        path.rename(path.with_suffix('.jpeg'))
    names = ', '.join(sorted(path.name for path in images.iterdir())[:5])
    assert_lines(problems(segmentation)[:1], (images, '.jpg', f'got {names} and 6 more'))
