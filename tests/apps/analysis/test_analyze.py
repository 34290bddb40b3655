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
    error = capsys.readouterr().err
    return error[error.index('error: ') :].removeprefix('error: ').rstrip()


def test_figures_and_numbers_of_a_classifier(classifier, write_checkpoint, photo, tmp_path, capsys):
    out, first = tmp_path / 'out', 'stages.0.blocks.0.attn'
    broken = tmp_path / 'broken.jpg'
    broken.write_text('no picture')
    arguments = [
        classifier,
        write_checkpoint(classifier, tmp_path / 'random.pth'),
        photo,
        broken,
        '--out',
        out,
    ]
    assert run_script('analyze', *arguments, '--points', '45,30', '20,5', '--dpi', '50') == 3
    assert capsys.readouterr().out.splitlines() == [
        f'skipped: {broken}: not an image',
        *(f'analyzing layers: {number} of 4' for number in (2, 3, 4)),
        f'{out}: 1 image done, 1 skipped; 2 layers each',
    ]
    names = [*CHARTS, f'maps_{first}', 'maps_stages.1.blocks.0.attn']
    figures = {f'photo/{name}{suffix}' for name in names for suffix in ('.png', '.svg')}
    assert {str(path.relative_to(out)) for path in out.rglob('*') if path.is_file()} == figures | {
        'photo.json'
    }
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
    assert np.array(layer['parameters']['exponent']) == pytest.approx(
        np.full((1, 8), 3.0)
    )  # not trained
    assert layer['effective_rank']['sampled_rows'] == 64

    assert refusal(capsys, *arguments, '--layers', first) == (
        f'--out: 11 of the results exist already ({out}/photo/entropy.png, {out}/photo/entropy.svg, '
        f'{out}/photo/parameters.png, {out}/photo/parameters.svg, {out}/photo/gates.png and 6 more); '
        'choose another folder, or allow overwriting with --overwrite'
    )


@pytest.mark.parametrize('task', ['tiny_config', 'tiny_segmentation'])
def test_detectors_and_segmenters(task, request, write_checkpoint, photo, tmp_path, capsys):
    config, name = request.getfixturevalue(task), 'stages.1.blocks.0.attn'
    checkpoint, out = write_checkpoint(config, tmp_path / 'random.pth'), tmp_path / 'out'
    paper = [
        '--format',
        'pdf',
        'png',
        '--dpi',
        '100',
        '--no-title',
        '--cmap',
        'magma',
        '--width-inches',
        '7',
    ]
    assert (
        run_script('analyze', config, checkpoint, photo, '--out', out, '--layers', name, *paper)
        == 0
    )
    assert capsys.readouterr().out.endswith(f'{out}: 1 image done, 0 skipped; 1 layer each\n')
    found = json.loads((out / 'photo.json').read_text())
    assert found['points'] == [[45, 30]]
    assert list(found['layers']) == [name]
    assert found['layers'][name]['grid'] == [
        -(-found['input'][side] // 8) for side in ('height', 'width')
    ]
    names = {
        f'{figure}.{suffix}' for figure in (*CHARTS, f'maps_{name}') for suffix in ('pdf', 'png')
    }
    assert {path.name for path in out.glob('photo/*')} == names
    assert all(Image.open(path).width == 700 for path in out.glob('photo/*.png'))


def test_what_is_refused(classifier, tiny_config, write_checkpoint, photo, tmp_path, capsys):
    checkpoint, out = write_checkpoint(classifier, tmp_path / 'random.pth'), tmp_path / 'out'
    arguments = [classifier, checkpoint, photo, '--out', out]
    assert refusal(capsys, *arguments, '--points', '45,30', '90,30') == (
        f'--points: expected pixels of {photo}, 90 x 60, got 90,30'
    )
    assert refusal(capsys, *arguments, '--points', '4,30') == (
        f'--points: expected pixels of {photo} that the test transforms keep, x from 5 to 84 and y from 3 to 56, '
        'got 4,30'
    )
    assert refusal(capsys, *arguments, '--points', '5;30') == (
        '--points: expected X,Y in pixels, such as 120,80, got 5;30'
    )
    assert refusal(capsys, *arguments, '--layers', 'stages.2.blocks.0.attn') == (
        '--layers: expected layers among stages.0.blocks.0.attn, stages.1.blocks.0.attn, got stages.2.blocks.0.attn; '
        'did you mean stages.1.blocks.0.attn?'
    )
    assert refusal(capsys, tiny_config, checkpoint, photo, '--out', out).startswith(
        f'{checkpoint}: expected the weights of a whole MaskRCNN, '
    )
    softmax = tmp_path / 'softmax.py'
    softmax.write_text(
        f"_base_ = {str(classifier)!r}\nmodel = dict(backbone=dict(attn_types='SSSS'))"
    )
    checkpoint = write_checkpoint(softmax, tmp_path / 'softmax.pth')
    assert refusal(capsys, softmax, checkpoint, photo, '--out', out) == (
        'model: expected linear attention layers of mmpola, got PolaSwin without any'
    )
    assert not out.exists()


def test_images_one_pixel_wide_are_drawn_or_skipped(
    tiny_config, write_checkpoint, tmp_path, capsys
):
    thin, thinner, out = tmp_path / 'thin.png', tmp_path / 'thinner.png', tmp_path / 'out'
    Image.new('RGB', (1, 60)).save(thin)
    Image.new('RGB', (1, 500)).save(thinner)
    arguments = (
        tiny_config,
        write_checkpoint(tiny_config, tmp_path / 'random.pth'),
        thinner,
        thin,
        '--out',
        out,
    )
    options = (
        '--layers',
        'stages.1.blocks.0.attn',
        '--points',
        '0,30',
        '--format',
        'png',
        '--dpi',
        '40',
    )
    assert run_script('analyze', *arguments, *options) == 3
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f'skipped: {thinner}: 1 x 500 pixels, too narrow for the test transforms'
    assert printed[-1] == f'{out}: 1 image done, 1 skipped; 1 layer each'
    assert sorted(path.name for path in out.iterdir()) == ['thin', 'thin.json']


def test_points_are_pairs_of_integers():
    assert parse_points(['120,80', '0,7']) == [(120, 80), (0, 7)]
    for wrong in ('120', '120,80,3', '1.5,2', 'a,b'):
        with pytest.raises(UsageError, match='--points: expected X,Y in pixels, such as 120,80'):
            parse_points([wrong])
