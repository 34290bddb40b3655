"""Detectors and segmenters with random weights: their files, against the inferencers' results."""

import errno
import json
import re

import numpy as np
import pytest
import torch
from mmdet.apis import DetInferencer
from mmengine.config import Config
from mmseg.apis import MMSegInferencer
from PIL import Image

from mmpola.images import place_of_name
from tests.helpers.configs import ONE_CHANNEL
from tests.helpers.prediction import open_predictor
from tests.helpers.processes import run_script


def differs(drawn, picture):
    """Return the mean difference of two images in 8-bit levels."""
    one = np.asarray(Image.open(drawn).convert('RGB')).astype(float)
    other = np.asarray(Image.open(picture).convert('RGB')).astype(float)
    return np.abs(one - other).mean()


def test_boxes_and_masks(tiny_config, write_checkpoint, shapes, tmp_path, capsys):
    averaged = {'steps': torch.tensor(1)}
    checkpoint = write_checkpoint(tiny_config, tmp_path / 'random.pth', ema_state_dict=averaged)
    photos = tmp_path / 'photos'
    (photos / 'inner').mkdir(parents=True)
    first, second, third, *_ = sorted((shapes / 'coco' / 'val2017').iterdir())
    (photos / 'first.jpg').write_bytes(first.read_bytes())
    (photos / 'inner' / 'second.jpg').write_bytes(second.read_bytes())
    (photos / 'broken.jpg').write_bytes(third.read_bytes()[:1000])
    (photos / 'empty.jpg').touch()
    (photos / 'text.png').write_text('no picture')
    out = tmp_path / 'out'
    # Untrained scores are about 1 in 7 classes.
    options = ['--score-thr', '0.1', '--cfg-options', 'model.test_cfg.rcnn.score_thr=0.0']
    arguments = [tiny_config, checkpoint, photos, '--out', out, *options]
    assert run_script('predict', *arguments) == 0
    printed = capsys.readouterr().out
    for name in ('broken.jpg', 'empty.jpg', 'text.png'):
        assert f'skipped: {photos}/{name}: LoadImageFromFile: ' in printed
    assert printed.endswith(f'2 images done, 3 skipped; see {out}/vis\n')
    assert {str(path.relative_to(out)) for path in out.rglob('*.*')} == {
        'preds/first.json',
        'preds/inner/second.json',
        'vis/first.jpg',
        'vis/inner/second.jpg',
    }

    cfg = Config.fromfile(tiny_config)
    cfg.model.test_cfg.rcnn.score_thr = 0.0
    inferencer = DetInferencer(cfg, str(checkpoint), device='cpu', show_progress=False)
    for name in ('first', 'inner/second'):
        photo = photos / f'{name}.jpg'
        assert differs(out / 'vis' / f'{name}.jpg', photo) > 5
        found = json.loads((out / 'preds' / f'{name}.json').read_text())
        (expected,) = inferencer(str(photo))['predictions']
        assert found['labels'] == expected['labels']
        assert found['scores'] == pytest.approx(expected['scores'])
        assert np.array(found['bboxes']) == pytest.approx(np.array(expected['bboxes']), abs=1e-3)
        assert len(found['masks']) == len(found['labels']) > 0

    assert run_script('predict', *arguments) == 2
    assert run_script('predict', *arguments, '--overwrite') == 0


def test_a_higher_threshold_draws_less(tiny_config, write_checkpoint, shapes, tmp_path, capsys):
    checkpoint = write_checkpoint(tiny_config, tmp_path / 'random.pth')
    photo = next((shapes / 'coco' / 'val2017').iterdir())
    pixels = np.asarray(Image.open(photo)).astype(float)
    options = ['--cfg-options', 'model.test_cfg.rcnn.score_thr=0.0']
    line = r'nothing is drawn: the highest score is 0\.\d{3}, which is not above --score-thr '
    results = {}
    added = {}
    for threshold, empty in (('0.1', 0), ('0.9', 1)):
        out = tmp_path / threshold
        arguments = [photo, '--out', out, '--score-thr', threshold, *options]
        assert run_script('predict', tiny_config, checkpoint, *arguments) == 0
        assert len(re.findall(line + threshold, capsys.readouterr().out)) == empty
        results[threshold] = (out / 'preds' / f'{photo.stem}.json').read_text()
        drawn = np.asarray(Image.open(out / 'vis' / photo.name)).astype(float)
        added[threshold] = np.abs(drawn - pixels).mean()
    assert added['0.9'] < added['0.1'] / 2
    assert results['0.1'] == results['0.9']


@pytest.mark.parametrize('task', ['tiny_config', 'tiny_segmentation'])
def test_class_names_and_colours_are_those_of_the_checkpoint(
    task, request, write_checkpoint, tmp_path
):
    config = request.getfixturevalue(task)
    meta = {'classes': tuple('abcdef'), 'palette': [(0, 0, 10 * i) for i in range(6)]}
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth', meta={'dataset_meta': meta})
    cfg = Config.fromfile(config)
    predictor = open_predictor(cfg, checkpoint)
    assert predictor.visualizer.dataset_meta == meta
    assert predictor.visualizer._get_center_loc is place_of_name


@pytest.mark.parametrize('head', ['', ONE_CHANNEL])
def test_segmentations(head, tiny_segmentation, write_checkpoint, shapes, tmp_path, capsys):
    with open(tiny_segmentation, 'a') as config:
        config.write(head)
    checkpoint = write_checkpoint(tiny_segmentation, tmp_path / 'random.pth')
    out = tmp_path / 'out'
    photo = next((shapes / 'ade' / 'images' / 'validation').iterdir())
    assert run_script('predict', tiny_segmentation, checkpoint, photo, '--out', out) == 0
    note = 'class numbers in preds/*.png: from 0; in the annotation files: from 1 (reduce_zero_'
    assert note in capsys.readouterr().out  # as ADE20K has it
    inferencer = MMSegInferencer(str(tiny_segmentation), str(checkpoint), device='cpu')
    labels = Image.open(out / 'preds' / f'{photo.stem}.png')
    assert labels.mode == 'L'
    assert len(np.unique(labels)) > 1
    assert (np.asarray(labels) == inferencer(str(photo))['predictions']).mean() > 0.999
    assert differs(out / 'vis' / f'{photo.stem}.jpg', photo) > 5


def test_an_image_that_cannot_be_drawn_or_written_ends_itself(
    tiny_segmentation, write_checkpoint, fill_the_disk, shapes, tmp_path, capsys
):
    checkpoint = write_checkpoint(tiny_segmentation, tmp_path / 'random.pth')
    photos = tmp_path / 'photos'
    photos.mkdir()
    photo = Image.open(next((shapes / 'ade' / 'images' / 'validation').iterdir()))
    for name in ('full', 'good'):
        photo.save(photos / f'{name}.png')
    Image.new('RGB', (1, 1)).save(photos / 'pixel.png')
    Image.new('RGB', (1, 60)).save(photos / 'line.png')
    long = photos / f'{"x" * 250}.jpeg'
    photo.save(long)
    double = photos / f'{"x" * 250}.png'
    photo.save(double)  # both keep their suffix, which makes their names too long
    fill_the_disk('full.png.png')
    out = tmp_path / 'out'
    assert run_script('predict', tiny_segmentation, checkpoint, photos, '--out', out) == 0
    printed = capsys.readouterr().out
    assert f'skipped: {photos}/full.png: OSError: [Errno 28] No space left on device: ' in printed
    assert f'skipped: {photos}/pixel.png: IndexError: ' in printed  # mmseg's
    assert f'skipped: {long}: OSError: [Errno {errno.ENAMETOOLONG}] ' in printed
    assert f'skipped: {double}: OSError: [Errno {errno.ENAMETOOLONG}] ' in printed
    assert printed.endswith(f'2 images done, 4 skipped; see {out}/vis\n')
    files = {str(path.relative_to(out)) for path in out.rglob('*') if path.is_file()}
    names = ('good.png', 'line.png')  # all keep their suffix, as two images differ by nothing else
    expected = [(f'preds/{name}.png', f'vis/{name}.jpg') for name in names]
    assert files == {path for paths in expected for path in paths}


AUGMENTED = """
_base_ = {base!r}
model = dict(_delete_=True, type={wrapper!r}, module=_base_.model, **{settings!r})
views = [
    [dict(type='Resize', scale=(96, 80), keep_ratio=True)],
    [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)],
    [dict(type='LoadAnnotations')],
    [dict(type={pack!r}, meta_keys=('img_path', 'ori_shape', 'img_shape', 'scale_factor', 'flip',
                                    'flip_direction'))],
]
pipeline = [dict(type='LoadImageFromFile'), dict(type='TestTimeAug', transforms=views)]
test_dataloader = dict(dataset=dict(pipeline=pipeline))
"""


@pytest.mark.parametrize('task', ['tiny_config', 'tiny_segmentation'])
def test_test_time_augmentation(task, request, write_checkpoint, shapes, tmp_path, capsys):
    config = request.getfixturevalue(task)
    augmented = tmp_path / 'augmented.py'
    settings = {'wrapper': 'SegTTAModel', 'settings': {}, 'pack': 'PackSegInputs'}
    if task == 'tiny_config':
        nms = {'nms': {'type': 'nms', 'iou_threshold': 0.5}, 'max_per_img': 100}
        settings = {'wrapper': 'DetTTAModel', 'settings': {'tta_cfg': nms}, 'pack': 'PackDetInputs'}
    augmented.write_text(AUGMENTED.format(base=str(config), **settings))
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth')
    folder = {'tiny_config': 'coco/val2017', 'tiny_segmentation': 'ade/images/validation'}[task]
    photo = next((shapes / folder).iterdir())
    flipped = tmp_path / 'flipped.png'
    Image.open(photo).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(flipped)
    whole = tmp_path / 'whole.png'
    Image.open(photo).save(whole)
    out = tmp_path / 'out'
    assert run_script('predict', augmented, checkpoint, whole, flipped, '--out', out) == 0
    assert capsys.readouterr().out.endswith(f'2 images done, 0 skipped; see {out}/vis\n')
    if task == 'tiny_segmentation':
        labels = [np.asarray(Image.open(out / 'preds' / f'{n}.png')) for n in ('whole', 'flipped')]
        assert (labels[0] == labels[1][:, ::-1]).mean() > 0.99
    else:
        whole, flipped = (
            json.loads((out / 'preds' / f'{name}.json').read_text())
            for name in ('whole', 'flipped')
        )
        assert len(whole['labels']) > 0 and 'masks' not in whole
        assert sorted(whole['scores']) == pytest.approx(sorted(flipped['scores']), abs=1e-3)


def test_a_checkpoint_of_another_network_is_refused(
    tiny_config, tiny_segmentation, write_checkpoint, shapes, tmp_path, capsys
):
    meta = {'experiment_name': 'tiny_segmentation_20250131_235959'}
    checkpoint = write_checkpoint(tiny_segmentation, tmp_path / 'other.pth', meta=meta)
    photos = shapes / 'coco' / 'val2017'
    out, work = tmp_path / 'out', tmp_path / 'work'
    for tool, arguments in (('predict', [photos, '--out', out]), ('test', ['--work-dir', work])):
        assert run_script(tool, tiny_config, checkpoint, *arguments) == 2
        assert f'error: {checkpoint}: ' in capsys.readouterr().err
    assert not out.exists() and not work.exists()
