"""tools/analyze.py: its files for each task, points, and what it refuses."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from mmpola.messages import UsageError
from mmpola.papers.analysis import images, parse_points
from tests.helpers.processes import run_script

CHARTS = ('entropy', 'gates', 'parameters', 'rank', 'sorted')


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
    arguments = [classifier, checkpoint, broken, photo, '--out', out]
    assert run_script('analyze', *arguments, '--points', '45,30', '20,5') == 0
    printed = capsys.readouterr().out.splitlines()
    assert f'skipped: {broken}: not an image' in printed
    maps = out / 'photo/maps_stages.1.blocks.0.attn.png'
    assert f'{photo}: what its queries read in the last layer: {maps}' in printed
    assert printed[-1] == f'{out}: 1 image done, 1 skipped; 2 layers each'

    names = [*CHARTS, f'maps_{first}', 'maps_stages.1.blocks.0.attn']
    expected = {f'photo/{name}{suffix}' for name in names for suffix in ('.png', '.pdf')}
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
    for kind in ('same', 'opposite', 'both', 'softmax', 'linear', 'focused'):
        assert 0 < layer['entropy'][kind][0] <= math.log(64) * (1 + 1e-4)  # five digits are written
    not_trained = np.full((1, 8), 3.0)
    assert np.array(layer['parameters']['exponent']) == pytest.approx(not_trained)
    ranks = layer['effective_rank']
    assert ranks['sampled_rows'] == 64
    for kind in ('same', 'opposite', 'linear', 'relu', 'focused', 'softmax'):
        assert 1 <= ranks[kind][0] <= 64

    assert 'of the results exist already' in refusal(capsys, *arguments)
    arguments = [classifier, checkpoint, photo, '--out', tmp_path / 'other']
    error = refusal(capsys, *arguments, '--points', '90,30')
    assert error.startswith(f'--points: {photo}: point 90,30: expected a pixel that the network ')
    assert 'stages.0.blocks.0.attn' in refusal(capsys, *arguments, '--layers', 'attn')
    assert not (tmp_path / 'other').exists()


@pytest.mark.parametrize('task', ['tiny_config', 'tiny_segmentation'])
def test_detectors_and_segmenters(task, request, write_checkpoint, photo, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(images, 'save_figure', lambda figure, folder, name: drawn.append(name))
    config = request.getfixturevalue(task)
    name = 'stages.1.blocks.0.attn'
    checkpoint = write_checkpoint(config, tmp_path / 'random.pth')
    out = tmp_path / 'out'
    out.mkdir()
    assert run_script('analyze', config, checkpoint, photo, '--out', out, '--layers', name) == 0
    found = json.loads((out / 'photo.json').read_text())
    assert found['points'] == [[45, 30]]
    assert list(found['layers']) == [name]
    assert found['layers'][name]['grid'] == [
        math.ceil(found['input'][side] / 8) for side in ('height', 'width')
    ]
    assert sorted(drawn) == sorted([*CHARTS, f'maps_{name}'])


def test_a_model_without_linear_attention_is_refused(
    classifier, write_checkpoint, photo, tmp_path, capsys
):
    softmax = tmp_path / 'softmax.py'
    softmax.write_text(
        f"_base_ = {str(classifier)!r}\nmodel = dict(backbone=dict(attn_types='SSSS'))"
    )
    checkpoint = write_checkpoint(softmax, tmp_path / 'softmax.pth')
    error = refusal(capsys, softmax, checkpoint, photo, '--out', tmp_path / 'out')
    assert error.startswith('model: expected linear attention layers of mmpola, got PolaSwin')


def test_points_are_pairs_of_integers():
    assert parse_points(['120,80', '0,7']) == [(120, 80), (0, 7)]
    for wrong in ('120', '120,80,3', '1.5,2', '-1,2', 'a,b'):
        with pytest.raises(UsageError, match='--points: expected X,Y in pixels, such as 120,80'):
            parse_points([wrong])
