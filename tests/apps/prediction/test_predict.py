"""Predicting images end to end with random weights, and what tools/predict.py refuses."""

import json
import re

import cv2
import numpy as np
import pytest
import torch
from mmdet.apis import DetInferencer
from mmengine.config import Config
from PIL import Image
from pycocotools import mask as run_lengths

from mmpola.apps.prediction import files
from mmpola.apps.prediction.predict import segmentation
from mmpola.apps.prediction.predictor import Predictor
from mmpola.messages import UsageError
from tests.helpers.processes import run_script

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')


@pytest.fixture
def photos(shapes, tmp_path):
    """A folder with an image, a text file named like one, and a folder with two images, one of them truncated."""
    folder, inner = tmp_path / 'photos', tmp_path / 'photos' / 'inner'
    inner.mkdir(parents=True)
    first, second, third, _ = sorted((shapes / 'coco' / 'val2017').iterdir())
    (folder / 'first.jpg').write_bytes(first.read_bytes())
    (inner / 'second.jpg').write_bytes(second.read_bytes())
    (inner / 'third.jpg').write_bytes(third.read_bytes()[:1000])
    (folder / 'text.png').write_text('no picture')
    return folder


def differs(drawn, picture):
    """Return the mean difference of two images in 8-bit levels."""
    one, other = (
        np.asarray(Image.open(path).convert('RGB')).astype(float) for path in (drawn, picture)
    )
    return np.abs(one - other).mean()


def test_boxes_and_masks_are_drawn_and_written(
    tiny_config, write_checkpoint, photos, tmp_path, capsys
):
    checkpoint = write_checkpoint(
        tiny_config, tmp_path / 'random.pth', ema_state_dict={'steps': torch.tensor(1)}
    )
    out = tmp_path / 'out'
    arguments = [
        tiny_config,
        checkpoint,
        photos,
        '--score-thr',
        '0.1',
        '--batch-size',
        '2',
        '--out',
        out,
    ]
    options = [
        '--cfg-options',
        'model.test_cfg.rcnn.score_thr=0.0',
    ]  # untrained scores are about 1 in 7 classes
    assert run_script('predict', *arguments, *options) == 3
    instances = sum(len(json.loads(path.read_text())['instances']) for path in out.rglob('*.json'))
    printed = [
        line for line in capsys.readouterr().out.splitlines() if not line.startswith('predicting')
    ]
    assert len(printed) == 4
    assert (
        printed[0]
        == f'{checkpoint}: averaged (EMA) weights are used, not the raw weights of the last step'
    )
    assert f'skipped: {photos}/text.png: not an image' in printed
    assert any(
        line.startswith(f'skipped: {photos}/inner/third.jpg: OSError: image file is truncated (')
        for line in printed
    )
    assert (
        printed[-1]
        == f'{out}: 2 images done, 2 skipped; {instances} detections with a score of at least 0.1'
    )
    files = sorted(str(path.relative_to(out)) for path in out.rglob('*') if path.is_file())
    assert files == ['first.jpg', 'first.json', 'inner/second.jpg', 'inner/second.json']
    for name in ('first', 'inner/second'):
        found = json.loads((out / f'{name}.json').read_text())
        assert (found['image'], found['width'], found['height']) == (f'{photos}/{name}.jpg', 96, 80)
        assert found['instances']
        scores = [instance['score'] for instance in found['instances']]
        assert scores == sorted(scores, reverse=True)
        assert min(scores) >= 0.1
        for instance in found['instances']:
            assert instance['class'] == CLASSES[instance['label']]
            left, top, right, bottom = instance['box']
            assert 0 <= left < right <= 96 and 0 <= top < bottom <= 80
            rows, columns = np.nonzero(run_lengths.decode(instance['mask']))
            assert instance['mask']['size'] == [80, 96]
            assert rows.size == 0 or (left - 1 <= columns.min() and columns.max() <= right + 1)
        assert differs(out / f'{name}.jpg', photos / f'{name}.jpg') > 5

    cfg = Config.fromfile(tiny_config)
    cfg.model.test_cfg.rcnn.score_thr = 0.1
    inferencer = DetInferencer(cfg, str(checkpoint), device='cpu', show_progress=False)
    (expected,) = inferencer(str(photos / 'inner' / 'second.jpg'))['predictions']
    assert [instance['score'] for instance in found['instances']] == pytest.approx(
        expected['scores']
    )
    boxes = [instance['box'] for instance in found['instances']]
    assert np.array(boxes) == pytest.approx(np.array(expected['bboxes']), abs=1e-3)

    assert run_script('predict', *arguments, *options) == 2
    assert f'--out: 4 of the results exist already ({out}/first.jpg, ' in capsys.readouterr().err


def test_segmentations_are_drawn_and_written(
    tiny_segmentation, write_checkpoint, shapes, tmp_path, capsys
):
    other = {
        'dataset_meta': {'classes': tuple('abcdef'), 'palette': [[40 * i, 0, 0] for i in range(6)]}
    }
    checkpoint = write_checkpoint(tiny_segmentation, tmp_path / 'random.pth', meta=other)
    names, out = ('large', 'small'), tmp_path / 'out'
    for name, size in zip(
        names, ((96, 80), (48, 64)), strict=True
    ):  # mmseg needs images of one size in a batch
        with Image.open(sorted((shapes / 'ade' / 'images' / 'validation').iterdir())[0]) as image:
            image.resize(size).save(tmp_path / f'{name}.jpg')
    images = f'{tmp_path}/*l*.jpg'
    assert (
        run_script(
            'predict', tiny_segmentation, checkpoint, images, '--out', out, '--batch-size', '2'
        )
        == 0
    )
    assert capsys.readouterr().out.endswith(f'{out}: 2 images done, 0 skipped\n')
    for name, (width, height) in zip(names, ((96, 80), (48, 64)), strict=True):
        found = json.loads((out / f'{name}.json').read_text())
        labels = np.asarray(Image.open(out / found['label_map']))
        assert labels.shape == (height, width) == (found['height'], found['width'])
        assert sum(entry['share'] for entry in found['classes']) == pytest.approx(1, abs=1e-9)
        for entry in found['classes']:
            assert entry['share'] == (labels == entry['label']).mean() > 0
            assert (
                entry['class'] == 'abcdef'[entry['label']]
            )  # as the checkpoint's training called them
        assert differs(out / f'{name}.jpg', tmp_path / f'{name}.jpg') > 5


@pytest.mark.parametrize(
    ('task', 'size'), [('tiny_config', (1, 60)), ('tiny_segmentation', (1, 1))]
)
def test_images_of_one_column_are_predicted_or_skipped(
    task, size, request, write_checkpoint, tmp_path, capsys
):
    config, thinner, out = request.getfixturevalue(task), tmp_path / 'thinner.png', tmp_path / 'out'
    Image.new('RGB', size).save(tmp_path / 'thin.png')
    Image.new('RGB', (1, 9000)).save(thinner)
    images = thinner, tmp_path / 'thin.png'
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth')
    assert run_script('predict', config, checkpoint, *images, '--out', out, '--batch-size', 2) == 3
    printed = capsys.readouterr().out.splitlines()
    assert f'skipped: {thinner}: 1 x 9000 pixels, too narrow for the test transforms' in printed
    assert printed[-1].startswith(f'{out}: 1 image done, 1 skipped')
    with Image.open(out / 'thin.jpg') as drawn:
        assert drawn.size == size


def test_a_checkpoint_of_another_network_is_refused(
    tiny_config, tiny_segmentation, write_checkpoint, photos, tmp_path, capsys
):
    checkpoint = write_checkpoint(
        tiny_segmentation,
        tmp_path / 'other.pth',
        meta={'experiment_name': 'tiny_segmentation_20250131_235959'},
    )
    out, work = tmp_path / 'out', tmp_path / 'work'
    for tool, arguments in (('predict', [photos, '--out', out]), ('test', ['--work-dir', work])):
        assert run_script(tool, tiny_config, checkpoint, *arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f'error: {checkpoint}: expected the weights of the model MaskRCNN (')
        assert 'another network (backbone, neck, decode_head)' in line
        assert line.endswith('; it was trained with tiny_segmentation')
    assert not out.exists() and not work.exists()


def test_files_folders_and_patterns(photos, tmp_path):
    def found(*arguments, out=tmp_path / 'out'):
        listed = files.find_images([str(argument) for argument in arguments], out)
        return [(str(path.relative_to(tmp_path)), str(result)) for path, result in listed]

    everything = [
        ('photos/first.jpg', 'first'),
        ('photos/inner/second.jpg', 'inner/second'),
        ('photos/inner/third.jpg', 'inner/third'),
        ('photos/text.png', 'text'),
    ]
    assert found(photos) == found(photos, photos / 'first.jpg') == everything
    assert found(f'{photos}/**/*.jpg') == everything[:3]
    assert found(f'{photos}/inner/s*') == [('photos/inner/second.jpg', 'second')]
    assert found(photos, out=photos / 'inner') == [
        everything[0],
        everything[3],
    ]  # no results of an earlier run
    with pytest.raises(
        UsageError,
        match=re.escape(
            f'{photos}/inner/second.jpg and {photos}/second.jpg: the results of both would be {tmp_path}'
        ),
    ):
        found(photos / 'inner' / 'second.jpg', (photos / 'first.jpg').rename(photos / 'second.jpg'))


@pytest.mark.parametrize(
    ('argument', 'message'),
    [
        ('{0}/none.jpg', '{0}/none.jpg: no such file or folder'),
        ('{0}/*.gif', '{0}/*.gif: no file matches this pattern'),
        (
            '{0}/empty',
            '{0}/empty: no images in this folder (.bmp .jpeg .jpg .pgm .png .ppm .tif .tiff .webp)',
        ),
    ],
)
def test_arguments_that_match_nothing(photos, argument, message, tmp_path):
    (photos / 'empty').mkdir()
    with pytest.raises(UsageError, match=re.escape(message.format(photos))):
        files.find_images([argument.format(photos)], tmp_path / 'out')


def test_an_input_image_is_never_overwritten(photos):
    found = files.find_images([str(photos / 'first.jpg')], photos)
    with pytest.raises(
        UsageError,
        match=re.escape(
            f'--out: {photos}: results would overwrite the input images ({photos}/first.jpg)'
        ),
    ):
        files.check_outputs(found, photos, ('.jpg', '.json'), overwrite=True)


@pytest.mark.parametrize('out', ['text.png', 'text.png/inner'])
def test_a_file_in_place_of_the_folder_of_results_is_refused(photos, out):
    found = files.find_images([str(photos / 'first.jpg')], photos / out)
    with pytest.raises(UsageError, match='--out: expected a folder for the results'):
        files.check_outputs(found, photos / out, ('.jpg', '.json'), overwrite=True)


def test_files_of_other_image_formats_in_a_folder_are_tried_and_named(
    photos, tmp_path, monkeypatch, capsys
):
    Image.new('RGB', (8, 6)).save(photos / 'animated.gif')
    (photos / 'phone.heic').write_bytes(b'no decoder for this')
    (photos / 'inner' / 'notes.txt').write_text('not an image by its suffix')
    read = cv2.imread
    monkeypatch.setattr(
        cv2, 'imread', lambda path, flags: None if path.endswith('.gif') else read(path, flags)
    )
    found, skips = files.find_images([str(photos)], tmp_path / 'out'), []
    predictor = Predictor(None, lambda pixels: pixels, None, (), mixed=True)
    batches = predictor.batches(found, 1, lambda: skips.append(1))
    assert [image.path.name for batch in batches for image, _, _ in batch] == [
        'first.jpg',
        'second.jpg',
    ]
    lines = [
        line.removeprefix('skipped: ').split(': ', 1)
        for line in capsys.readouterr().out.splitlines()
    ]
    skipped = {path.rpartition('/')[2]: reason for path, reason in lines}
    assert len(skips) == len(skipped) == 4
    assert skipped.pop('third.jpg').startswith('OSError: image file is truncated')
    assert skipped == {
        'animated.gif': 'not an image that OpenCV can read; .gif files may need to be converted to .png',
        'phone.heic': 'not an image; .heic files may need to be converted to .png',
        'text.png': 'not an image',
    }


def test_batches_hold_one_size_unless_the_model_pads(tmp_path):
    for number, size in enumerate([(8, 6), (8, 6), (8, 6), (6, 8)]):
        Image.new('RGB', size).save(tmp_path / f'{number}.png')
    found = files.find_images([str(tmp_path)], tmp_path / 'out')

    def lengths(mixed):
        batches = Predictor(None, lambda pixels: pixels, None, (), mixed).batches(
            found, 2, skip=None
        )
        return [[pixels.shape[:2] for _, pixels, _ in batch] for batch in batches]

    assert lengths(mixed=True) == [[(6, 8), (6, 8)], [(6, 8), (8, 6)]]
    assert lengths(mixed=False) == [[(6, 8), (6, 8)], [(6, 8)], [(8, 6)]]


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ("default_scope = 'mmpose'", 'got default_scope mmpose'),
        (
            "default_scope = 'mmdet'\nmodel = dict(module=dict())",
            'expected a config without test-time augmentation',
        ),
    ],
)
def test_configs_of_other_tasks_are_refused(text, message, tmp_path, capsys):
    config = tmp_path / 'config.py'
    config.write_text(text)
    assert run_script('predict', config, 'x.pth', tmp_path, '--out', tmp_path / 'out') == 2
    error = capsys.readouterr().err
    assert error.startswith(f'error: {config}: expected ') and message in error


def test_arguments_out_of_range_are_refused(tmp_path, capsys):
    for option, value, message in (
        ('--device', 'abacus', '--device: abacus: Expected one of cpu, cuda'),
        ('--batch-size', '0', '--batch-size: expected a positive integer, got 0'),
        ('--score-thr', '30', '--score-thr: expected a number in [0, 1], got 30'),
        ('--score-thr', 'nan', '--score-thr: expected a number in [0, 1], got nan'),
        ('--score-thr', 'high', '--score-thr: expected a number in [0, 1], got high'),
    ):
        assert (
            run_script(
                'predict', 'x.py', 'x.pth', tmp_path, '--out', tmp_path / 'out', option, value
            )
            == 2
        )
        assert message in capsys.readouterr().err


def test_shares_of_classes_largest_first():
    labels = np.array([[2, 2, 0], [2, 2, 1]])
    found = segmentation(labels, CLASSES)
    assert [(entry['class'], entry['share']) for entry in found] == [
        ('triangle', pytest.approx(4 / 6)),
        ('circle', pytest.approx(1 / 6)),
        ('square', pytest.approx(1 / 6)),
    ]
    assert [entry['label'] for entry in found] == [2, 0, 1]
