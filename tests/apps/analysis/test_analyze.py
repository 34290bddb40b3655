"""tools/analyze.py: its files for each task, points, and what it refuses."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from mmpola.apps.analysis import parse_points
from mmpola.messages import UsageError
from tests.helpers.processes import run_script

CHARTS = ('entropy', 'gates', 'parameters', 'rank')


def refusal(capsys, *arguments):
    """The error with which analyze.py refuses its arguments."""
    assert run_script('analyze', *arguments) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith('error: ')]
    return line.removeprefix('error: ')


def test_figures_and_numbers_of_a_classifier(classifier, write_checkpoint, photo, tmp_path, capsys):
    out = tmp_path / 'out'
    first = 'stages.0.blocks.0.attn'
    broken = tmp_path / 'broken.jpg'
    broken.write_text('no picture')
    checkpoint = write_checkpoint(classifier, tmp_path / 'random.pth')
    arguments = [classifier, checkpoint, photo, broken, '--out', out]
    assert run_script('analyze', *arguments, '--points', '45,30', '20,5', '--dpi', '50') == 3
    printed = capsys.readouterr().out.splitlines()
    assert f'skipped: {broken}: not an image' in printed
    assert 'analyzing layers: 4 of 4' in printed
    assert printed[-1] == f'{out}: 1 image done, 1 skipped; 2 layers each'

    names = [*CHARTS, f'maps_{first}', 'maps_stages.1.blocks.0.attn']
    expected = {f'photo/{name}{suffix}' for name in names for suffix in ('.png', '.svg')}
    expected.add('photo.json')
    assert {str(path.relative_to(out)) for path in out.rglob('*') if path.is_file()} == expected
    for path in out.glob('photo/*.png'):
        assert np.asarray(Image.open(path).convert('L')).std() > 10

    found = json.loads((out / 'photo.json').read_text())
    assert (found['width'], found['height'], found['points']) == (90, 60, [[45, 30], [20, 5]])
    assert found['input'] == {'height': 32, 'width': 32}
    layer = found['layers'][first]
    assert (layer['grid'], layer['log_keys']) == ([8, 8], pytest.approx(math.log(64)))
    assert [(point['row'], point['column']) for point in layer['points']] == [(4, 4), (0, 1)]
    for kind in ('same', 'opposite', 'both', 'softmax', 'linear'):
        assert 0 < layer['entropy'][kind][0] <= math.log(64) * (1 + 1e-4)  # five digits are written
    not_trained = np.full((1, 8), 3.0)
    assert np.array(layer['parameters']['exponent']) == pytest.approx(not_trained)
    assert layer['effective_rank']['sampled_rows'] == 64

    error = refusal(capsys, *arguments, '--layers', first)
    assert error.startswith(f'--out: 11 of the results exist already ({out}/photo/entropy.png, ')


@pytest.mark.parametrize('task', ['tiny_config', 'tiny_segmentation'])
def test_detectors_and_segmenters(task, request, write_checkpoint, photo, tmp_path, capsys):
    config = request.getfixturevalue(task)
    name = 'stages.1.blocks.0.attn'
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth')
    out = tmp_path / 'out'
    arguments = [config, checkpoint, photo, '--out', out, '--layers', name]
    formats = ['--format', 'pdf', 'png', '--dpi', '100', '--width-inches', '7']
    assert run_script('analyze', *arguments, *formats, '--no-title', '--cmap', 'magma') == 0
    assert capsys.readouterr().out.endswith(f'{out}: 1 image done, 0 skipped; 1 layer each\n')
    found = json.loads((out / 'photo.json').read_text())
    assert found['points'] == [[45, 30]]
    assert list(found['layers']) == [name]
    assert found['layers'][name]['grid'] == [
        math.ceil(found['input'][side] / 8) for side in ('height', 'width')
    ]
    figures = (*CHARTS, f'maps_{name}')
    expected = {f'{figure}.{suffix}' for figure in figures for suffix in ('pdf', 'png')}
    assert {path.name for path in out.glob('photo/*')} == expected
    assert all(Image.open(path).width == 700 for path in out.glob('photo/*.png'))


def test_points_and_layers_that_are_refused(classifier, write_checkpoint, photo, tmp_path, capsys):
    checkpoint = write_checkpoint(classifier, tmp_path / 'random.pth')
    out = tmp_path / 'out'
    arguments = [classifier, checkpoint, photo, '--out', out]
    error = refusal(capsys, *arguments, '--points', '45,30', '90,30')
    assert error == f'--points: expected pixels of {photo}, 90 x 60, got 90,30'
    error = refusal(capsys, *arguments, '--points', '4,30')
    assert error.startswith('--points: ')
    assert 'x from 5 to 84 and y from 3 to 56, got 4,30' in error
    assert refusal(capsys, *arguments, '--points', '5;30').endswith('got 5;30')
    error = refusal(capsys, *arguments, '--layers', 'stages.2.blocks.0.attn')
    assert error.startswith('--layers: expected layers among stages.0.blocks.0.attn, ')
    assert error.endswith('got stages.2.blocks.0.attn; did you mean stages.1.blocks.0.attn?')
    assert not out.exists()


def test_models_without_linear_attention_or_weights_are_refused(
    classifier, tiny_config, write_checkpoint, photo, tmp_path, capsys
):
    checkpoint = write_checkpoint(classifier, tmp_path / 'random.pth')
    out = tmp_path / 'out'
    error = refusal(capsys, tiny_config, checkpoint, photo, '--out', out)
    assert error.startswith(f'{checkpoint}: expected the weights of a whole MaskRCNN, ')
    softmax = tmp_path / 'softmax.py'
    softmax.write_text(
        f"_base_ = {str(classifier)!r}\nmodel = dict(backbone=dict(attn_types='SSSS'))"
    )
    checkpoint = write_checkpoint(softmax, tmp_path / 'softmax.pth')
    error = refusal(capsys, softmax, checkpoint, photo, '--out', out)
    assert error.startswith('model: expected linear attention layers of mmpola, got PolaSwin')
    assert not out.exists()


def test_images_one_pixel_wide_are_drawn_or_skipped(
    tiny_config, write_checkpoint, tmp_path, capsys
):
    thin = tmp_path / 'thin.png'
    thinner = tmp_path / 'thinner.png'
    out = tmp_path / 'out'
    Image.new('RGB', (1, 60)).save(thin)
    Image.new('RGB', (1, 500)).save(thinner)
    checkpoint = write_checkpoint(tiny_config, tmp_path / 'random.pth')
    options = ['--layers', 'stages.1.blocks.0.attn', '--points', '0,30', '--format', 'png']
    arguments = tiny_config, checkpoint, thinner, thin, '--out', out
    assert run_script('analyze', *arguments, *options, '--dpi', '40') == 3
    printed = capsys.readouterr().out.splitlines()
    assert f'skipped: {thinner}: 1 x 500 pixels, too narrow for the test transforms' in printed
    assert printed[-1] == f'{out}: 1 image done, 1 skipped; 1 layer each'
    assert sorted(path.name for path in out.iterdir()) == ['thin', 'thin.json']


def test_points_are_pairs_of_integers():
    assert parse_points(['120,80', '0,7']) == [(120, 80), (0, 7)]
    for wrong in ('120', '120,80,3', '1.5,2', 'a,b'):
        with pytest.raises(UsageError, match='--points: expected X,Y in pixels, such as 120,80'):
            parse_points([wrong])
