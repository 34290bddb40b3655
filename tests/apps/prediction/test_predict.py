"""Predicting images end to end with random weights, and what tools/predict.py refuses."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.apis import DetInferencer
from mmengine.config import Config
from mmseg.apis import MMSegInferencer
from PIL import Image
from pycocotools import mask as run_lengths

from mmpola.apps.prediction.predict import readable_batches
from mmpola.apps.prediction.predictor import load_predictor
from mmpola.engine.validate import build_on_meta
from mmpola.read_image import find_images, read_pixels
from tests.helpers.processes import run_script

CLASSES = ('circle', 'square', 'triangle', 'star', 'ring', 'cross')


@pytest.fixture
def photos(shapes, tmp_path):
    """A folder with an image, a text file named like one, and two images below, one cut off."""
    folder = tmp_path / 'photos'
    inner = folder / 'inner'
    inner.mkdir(parents=True)
    sources = sorted((shapes / 'coco' / 'val2017').iterdir())
    (folder / 'first.jpg').write_bytes(sources[0].read_bytes())
    (inner / 'second.jpg').write_bytes(sources[1].read_bytes())
    (inner / 'third.jpg').write_bytes(sources[2].read_bytes()[:1000])
    (folder / 'text.png').write_text('no picture')
    return folder


def differs(drawn, picture):
    """Return the mean difference of two images in 8-bit levels."""
    one = np.asarray(Image.open(drawn).convert('RGB')).astype(float)
    other = np.asarray(Image.open(picture).convert('RGB')).astype(float)
    return np.abs(one - other).mean()


def test_boxes_and_masks_are_drawn_and_written(
    tiny_config, write_checkpoint, photos, tmp_path, capsys
):
    averaged = {'steps': torch.tensor(1)}
    checkpoint = write_checkpoint(tiny_config, tmp_path / 'random.pth', ema_state_dict=averaged)
    out = tmp_path / 'out'
    arguments = [tiny_config, checkpoint, photos, '--out', out]
    # Untrained scores are about 1 in 7 classes.
    options = ['--score-thr', '0.1', '--cfg-options', 'model.test_cfg.rcnn.score_thr=0.0']
    assert run_script('predict', *arguments, '--batch-size', '2', *options) == 3
    printed = capsys.readouterr().out
    assert 'averaged (EMA)' in printed
    for name in ('text.png', 'inner/third.jpg'):
        assert f'skipped: {photos}/{name}: ' in printed

    files = sorted(str(path.relative_to(out)) for path in out.rglob('*') if path.is_file())
    assert files == [
        'preds/first.json',
        'preds/inner/second.json',
        'vis/first.jpg',
        'vis/inner/second.jpg',
    ]
    instances = 0
    for name in ('first', 'inner/second'):
        found = json.loads((out / 'preds' / f'{name}.json').read_text())
        assert found['scores'] == sorted(found['scores'], reverse=True)
        instances += sum(score > 0.1 for score in found['scores'])
        assert set(found['labels']) <= set(range(len(CLASSES)))
        for box, mask in zip(found['bboxes'], found['masks'], strict=True):
            left, top, right, bottom = box
            assert 0 <= left <= right <= 96 and 0 <= top <= bottom <= 80
            rows, columns = np.nonzero(run_lengths.decode(mask))
            assert mask['size'] == [80, 96]
            assert rows.size == 0 or (left - 1 <= columns.min() and columns.max() <= right + 1)
        assert differs(out / 'vis' / f'{name}.jpg', photos / f'{name}.jpg') > 5
    assert instances > 0
    assert printed.splitlines()[-1].startswith(f'{out}: 2 images done, 2 skipped; {instances} ')

    cfg = Config.fromfile(tiny_config)
    cfg.model.test_cfg.rcnn.score_thr = 0.0
    inferencer = DetInferencer(cfg, str(checkpoint), device='cpu', show_progress=False)
    (expected,) = inferencer(str(photos / 'inner' / 'second.jpg'))['predictions']
    assert found['labels'] == expected['labels']
    assert found['scores'] == pytest.approx(expected['scores'])
    assert np.array(found['bboxes']) == pytest.approx(np.array(expected['bboxes']), abs=1e-3)

    assert run_script('predict', *arguments, *options) == 2
    assert (
        f'--out: 4 of the results exist already ({out}/vis/first.jpg, ' in capsys.readouterr().err
    )


def test_a_higher_threshold_draws_less(tiny_config, write_checkpoint, photos, tmp_path, capsys):
    checkpoint = write_checkpoint(tiny_config, tmp_path / 'random.pth')
    photo = photos / 'first.jpg'
    options = ['--cfg-options', 'model.test_cfg.rcnn.score_thr=0.0']
    differences = []
    for threshold in ('0.1', '0.99'):
        out = tmp_path / threshold
        arguments = [photo, '--out', out, '--score-thr', threshold]
        assert run_script('predict', tiny_config, checkpoint, *arguments, *options) == 0
        differences.append(differs(out / 'vis' / 'first.jpg', photo))
    assert (
        capsys.readouterr().out.splitlines()[-1].startswith(f'{out}: 1 image done, 0 skipped; 0 ')
    )
    assert differences[1] < differences[0] / 2
    result = Path('preds', 'first.json')
    assert (tmp_path / '0.1' / result).read_text() == (tmp_path / '0.99' / result).read_text()


@pytest.mark.parametrize('task', ['tiny_config', 'tiny_segmentation'])
def test_class_names_and_colours_are_those_of_the_checkpoint(
    task, request, write_checkpoint, tmp_path
):
    config = request.getfixturevalue(task)
    meta = {
        'dataset_meta': {'classes': tuple('abcdef'), 'palette': [[0, 0, 10 * i] for i in range(6)]}
    }
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth', meta=meta)
    cfg = Config.fromfile(config)
    predictor = load_predictor(cfg, build_on_meta(cfg), checkpoint, 'cpu')
    assert predictor.classes == tuple('abcdef')
    assert (
        predictor.inferencer.visualizer.dataset_meta['palette'] == meta['dataset_meta']['palette']
    )


def test_segmentations_are_drawn_and_written(
    tiny_segmentation, write_checkpoint, shapes, tmp_path, capsys
):
    """mmseg needs images of one size in a batch; the third has another."""
    checkpoint = write_checkpoint(tiny_segmentation, tmp_path / 'random.pth')
    out = tmp_path / 'out'
    sizes = {'a': (96, 80), 'b': (96, 80), 'c': (96, 40)}
    folder = tmp_path / 'photos'
    folder.mkdir()
    sources = sorted((shapes / 'ade' / 'images' / 'validation').iterdir())
    for (name, size), source in zip(sizes.items(), sources, strict=False):
        with Image.open(source) as image:
            image.resize(size).save(folder / f'{name}.jpg')
    arguments = tiny_segmentation, checkpoint, folder, '--out', out
    assert run_script('predict', *arguments, '--batch-size', '3') == 0
    assert capsys.readouterr().out.endswith(f'{out}: 3 images done, 0 skipped\n')
    inferencer = MMSegInferencer(str(tiny_segmentation), str(checkpoint), device='cpu')
    for name, (width, height) in sizes.items():
        labels = np.asarray(Image.open(out / 'preds' / f'{name}.png'))
        assert labels.shape == (height, width)
        expected = inferencer(str(folder / f'{name}.jpg'))['predictions']
        assert (labels == expected).mean() > 0.999
        assert differs(out / 'vis' / f'{name}.jpg', folder / f'{name}.jpg') > 5
    assert sorted(path.name for path in (out / 'preds').iterdir()) == ['a.png', 'b.png', 'c.png']


@pytest.mark.parametrize(
    ('task', 'size'), [('tiny_config', (1, 60)), ('tiny_segmentation', (1, 60))]
)
def test_images_of_one_column_are_predicted_or_skipped(
    task, size, request, write_checkpoint, tmp_path, capsys
):
    config = request.getfixturevalue(task)
    thin = tmp_path / 'thin.png'
    thinner = tmp_path / 'thinner.png'
    out = tmp_path / 'out'
    Image.new('RGB', size).save(thin)
    Image.new('RGB', (1, 9000)).save(thinner)
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth')
    arguments = config, checkpoint, thinner, thin, '--out', out
    assert run_script('predict', *arguments, '--batch-size', 2) == 3
    printed = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f'skipped: {thinner}: 1 x 9000 pixels') for line in printed)
    assert printed[-1].startswith(f'{out}: 1 image done, 1 skipped')
    with Image.open(out / 'vis' / 'thin.jpg') as drawn:
        assert drawn.size == size


def test_a_single_pixel_is_skipped_by_a_segmenter(
    tiny_segmentation, write_checkpoint, tmp_path, capsys
):
    """mmseg takes its label map for a number."""
    path = tmp_path / 'pixel.png'
    Image.new('RGB', (1, 1)).save(path)
    checkpoint = write_checkpoint(tiny_segmentation, tmp_path / 'random.pth')
    out = tmp_path / 'out'
    assert run_script('predict', tiny_segmentation, checkpoint, path, '--out', out) == 3
    assert f'skipped: {path}: ' in capsys.readouterr().out
    assert not out.exists()


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


@pytest.mark.parametrize(
    ('mixed_sizes', 'expected'),
    [
        (True, [[(6, 8), (6, 8)], [(6, 8), (8, 6)]]),
        (False, [[(6, 8), (6, 8)], [(6, 8)], [(8, 6)]]),
    ],
)
def test_batches_hold_one_size_unless_the_model_pads(mixed_sizes, expected, tmp_path):
    for number, size in enumerate([(8, 6), (8, 6), (8, 6), (6, 8)]):
        Image.new('RGB', size).save(tmp_path / f'{number}.png')
    images = find_images([str(tmp_path)], tmp_path / 'out')
    predictor = SimpleNamespace(read=read_pixels, mixed_sizes=mixed_sizes)
    found = []
    for batch in readable_batches(predictor, images, 2, skip=None):
        found.append([image.pixels.shape[:2] for image in batch])
    assert found == expected


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
    assert error.startswith(f'error: {config}: expected ')
    assert message in error


@pytest.mark.parametrize(
    ('option', 'value'),
    [
        ('--device', 'abacus'),
        ('--batch-size', '0'),
        ('--score-thr', '30'),
        ('--score-thr', 'nan'),
        ('--score-thr', 'high'),
    ],
)
def test_arguments_out_of_range_are_refused(option, value, tmp_path, capsys):
    arguments = 'x.py', 'x.pth', tmp_path, '--out', tmp_path / 'out', option, value
    assert run_script('predict', *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f'error: {option}: ')
    assert value in error
