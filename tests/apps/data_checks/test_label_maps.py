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
    (line,) = problems(segmentation)
    assert '0 … 6 and 255' in line
    assert line.endswith(f'(2): {first} (label 200), {second} (label 7)')
    segmentation.train_dataloader.dataset.reduce_zero_label = False
    assert '0 … 5 and 255' in problems(segmentation)[0]


def test_files_of_the_wrong_kind(segmentation, ade):
    colours, small, broken, *_ = sorted((ade / 'annotations' / 'training').iterdir())
    image = sorted((ade / 'images' / 'training').iterdir())[3]
    Image.new('RGB', (96, 80)).save(colours)
    Image.new('L', (48, 40)).save(small)
    broken.write_bytes(b'')
    image.write_bytes(b'')
    (line,) = problems(segmentation)
    assert f'(4): {colours} (RGB, ' in line
    assert f'{small} (another size' in line
    assert f'{broken} (empty file), {image} (empty file)' in line


def test_images_have_label_maps(segmentation, ade):
    images = ade / 'images' / 'training'
    first = min((ade / 'annotations' / 'training').iterdir())
    first.unlink()
    assert_lines(problems(segmentation), (images, 'label map', f'(1): {first}'))
    for path in list(images.iterdir()):
        path.rename(path.with_suffix('.jpeg'))
    names = ', '.join(sorted(path.name for path in images.iterdir())[:5])
    assert_lines(problems(segmentation)[:1], (images, '.jpg', f'got {names} and 7 more'))
