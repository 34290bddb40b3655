"""tools/predict.py with a classifier: its files agree with the evaluation of the same images."""

import json

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

from mmpola.apps import image_reader
from mmpola.classification.class_folders import ClassFolders
from tests.helpers.processes import run_script
from tests.helpers.training import small_config

CLASSES = ('azure', 'lime', 'scarlet')


@pytest.fixture
def config(colours, tmp_path):
    """A config of a small classifier of three classes."""
    path = tmp_path / 'small.py'
    small_config(colours, tmp_path / 'work').dump(path)
    return path


@pytest.mark.parametrize(
    ('meta', 'names'), [({'classes': CLASSES}, CLASSES), (None, ('blue', 'green', 'red'))]
)
def test_the_best_classes_are_drawn_and_written(
    config, write_checkpoint, colours, tmp_path, meta, names, capsys
):
    checkpoint = write_checkpoint(
        config, tmp_path / 'random.pth', meta={'dataset_meta': meta} if meta else {}
    )
    out = tmp_path / 'out'
    Image.new('RGB', (90, 50), (10, 200, 30)).save(tmp_path / 'wide.png')
    arguments = [
        config,
        checkpoint,
        colours / 'val',
        tmp_path / 'wide.png',
        '--out',
        out,
        '--batch-size',
        '4',
    ]
    assert run_script('predict', *arguments) == 0
    assert capsys.readouterr().out.endswith(f'{out}: 10 images done, 0 skipped\n')

    cfg = Config.fromfile(config)
    model = MODELS.build(cfg.model)
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    dataset = ClassFolders(**{k: v for k, v in cfg.test_dataloader.dataset.items() if k != 'type'})
    for index in range(len(dataset)):
        item = dataset[index]
        with torch.no_grad():
            scores = model.eval()(item['inputs'][None]).softmax(1)[0]
        path = dataset.get_data_info(index)['img_path']
        name = path.removeprefix(f'{colours}/val/').removesuffix('.png')
        found = json.loads((out / 'preds' / f'{name}.json').read_text())
        assert (found['image'], found['width'], found['height']) == (path, 36, 40)
        assert sorted(found) == ['classes', 'height', 'image', 'width']
        order = scores.argsort(descending=True).tolist()
        assert [(entry['label'], entry['class']) for entry in found['classes']] == [
            (n, names[n]) for n in order
        ]
        assert [entry['score'] for entry in found['classes']] == pytest.approx(
            scores[order].tolist(), abs=1e-5
        )
    drawn = np.asarray(Image.open(out / 'vis' / 'wide.jpg')).astype(int)
    assert drawn.shape == (288, 768, 3)
    assert np.abs(drawn[144, 200] - (10, 200, 30)).max() < 8


def refusal(config, checkpoint, out, capsys, *options):
    """The one line with which predict.py refuses its arguments."""
    assert run_script('predict', config, checkpoint, config.parent, '--out', out, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_missing_or_other_class_names_are_refused(config, write_checkpoint, tmp_path, capsys):
    Image.new('RGB', (9, 9)).save(tmp_path / 'image.png')
    out = tmp_path / 'out'
    bare = write_checkpoint(config, tmp_path / 'bare.pth')
    option = 'test_dataloader.dataset.classes=gone'
    line = refusal(config, bare, out, capsys, '--cfg-options', option)
    assert line.startswith(f'error: {bare}: has no class names, and gone, ')
    meta = {'dataset_meta': {'classes': ('a', 'b')}}
    other = write_checkpoint(config, tmp_path / 'other.pth', meta=meta)
    line = refusal(config, other, out, capsys)
    assert line.startswith('error: model.num_classes: expected 2, ')
    assert line.endswith(', got 3')


def test_a_long_image_that_its_shorter_side_would_make_huge_is_skipped(
    config, write_checkpoint, tmp_path, capsys
):
    cfg = Config.fromfile(config)
    cfg.test_dataloader.dataset.transform.update(crop_mode='center', crop_pct=0.875, input_size=224)
    cfg.dump(tmp_path / 'center.py')
    long = tmp_path / 'long.png'
    Image.new('RGB', (50_000, 1)).save(long)
    Image.new('RGB', (60, 40)).save(tmp_path / 'short.png')
    checkpoint = write_checkpoint(
        tmp_path / 'center.py', tmp_path / 'random.pth', meta={'dataset_meta': {'classes': CLASSES}}
    )
    out = tmp_path / 'out'
    images = long, tmp_path / 'short.png'
    assert run_script('predict', tmp_path / 'center.py', checkpoint, *images, '--out', out) == 3
    printed = capsys.readouterr().out
    assert (
        f'skipped: {long}: 50000 x 1 pixels, of which the test transforms would make 12800000 x 256'
        in printed
    )
    assert [path.name for path in (out / 'preds').iterdir()] == ['short.json']


def test_names_of_classes_in_the_config_are_used(config, write_checkpoint, tmp_path, capsys):
    Image.new('RGB', (9, 9)).save(tmp_path / 'image.png')
    bare = write_checkpoint(config, tmp_path / 'bare.pth')
    out = tmp_path / 'out'
    option = 'test_dataloader.dataset.classes=[one,two,three]'
    arguments = [tmp_path / 'image.png', '--out', out, '--cfg-options', option]
    assert run_script('predict', config, bare, *arguments) == 0
    found = json.loads((out / 'preds' / 'image.json').read_text())['classes']
    assert {entry['label']: entry['class'] for entry in found} == {0: 'one', 1: 'two', 2: 'three'}
    few = option.replace(',three', '')
    line = refusal(config, bare, tmp_path / 'few', capsys, '--cfg-options', few)
    assert line.startswith('error: model.num_classes: expected 2, ')
    assert '(one, two)' in line
    assert line.endswith(', got 3')


@pytest.mark.parametrize('tool', ['predict', 'analyze'])
@pytest.mark.parametrize('input_size', [32, (3, 40, 32)])
def test_a_line_of_pixels_is_skipped_before_it_is_decoded(
    tool, input_size, config, write_checkpoint, tmp_path, capsys, monkeypatch
):
    """With --points, analyze.py also asks for the geometry of every image."""
    cfg = Config.fromfile(config)
    transform = cfg.test_dataloader.dataset.transform
    transform.update(crop_mode='center', input_size=input_size)
    cfg.dump(tmp_path / 'center.py')
    folder = tmp_path / 'images'
    folder.mkdir()
    line = folder / 'line.png'
    Image.new('1', (100_000, 1)).save(line)
    Image.new('RGB', (40, 40)).save(folder / 'usual.png')
    decoded = []
    read_pixels = image_reader.read_pixels

    def noting_pixels(path):
        decoded.append(path)
        return read_pixels(path)

    monkeypatch.setattr(image_reader, 'read_pixels', noting_pixels)
    meta = {'dataset_meta': {'classes': CLASSES}}
    checkpoint = write_checkpoint(tmp_path / 'center.py', tmp_path / 'random.pth', meta=meta)
    options = ['--points', '20,20', '--format', 'png'] if tool == 'analyze' else []
    arguments = [tmp_path / 'center.py', checkpoint, folder, '--out', tmp_path / 'out', *options]
    assert run_script(tool, *arguments) == 3
    printed = capsys.readouterr().out.splitlines()
    (skipped,) = [text for text in printed if text.startswith('skipped: ')]
    assert skipped.startswith(f'skipped: {line}: 100000 x 1 pixels, ')
    assert f'at most {image_reader.LARGEST_INPUT} pixels' in skipped
    assert decoded == [folder / 'usual.png']
    assert list((tmp_path / 'out').rglob('usual.json'))


@pytest.mark.parametrize('tool', ['predict', 'analyze'])
def test_file_names_with_terminal_escapes_are_printed_as_text(
    tool, config, write_checkpoint, tmp_path, capsys
):
    escape = '\x1b[2J'
    folder = tmp_path / 'images'
    folder.mkdir()
    (folder / f'broken{escape}.png').write_bytes(b'no image')
    Image.new('RGB', (40, 40)).save(folder / f'good{escape}.png')
    meta = {'dataset_meta': {'classes': [f'{name}{escape}' for name in CLASSES]}}
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth', meta=meta)
    out = tmp_path / f'out{escape}'
    assert run_script(tool, config, checkpoint, folder, '--out', out) == 3
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert 'broken\\x1b[2J.png: not an image' in printed
    assert 'out\\x1b[2J: 1 image done' in printed
    assert escape not in printed
