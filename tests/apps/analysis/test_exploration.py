"""What tools/explore.py captures of an image and draws of it, and what the script refuses."""

import importlib.util
import socket
import sys

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image

from mmpola.apps.analysis import analyze_layer, choose_layers, observe
from mmpola.apps.analysis.exploration import explore
from mmpola.apps.image_reader import network_input
from mmpola.apps.prediction.predictor import load_predictor
from mmpola.engine.validate import build_on_meta
from mmpola.messages import UsageError
from tests.helpers.processes import load_script, run_script

needs_gradio = pytest.mark.skipif(
    importlib.util.find_spec('gradio') is None, reason='gradio, which serves the page, is missing'
)
FIRST = 'stages.0.blocks.0.attn'
SECOND = 'stages.1.blocks.0.attn'


@pytest.fixture
def load(write_checkpoint, tmp_path):
    """A function that loads the predictor of a config with random weights."""

    def load_with_random_weights(config, changes=()):
        cfg = Config.fromfile(config)
        cfg.merge_from_dict(dict(changes))
        path = tmp_path / 'config.py'
        cfg.dump(path)
        init_default_scope(cfg.default_scope)
        checkpoint = write_checkpoint(path, tmp_path / 'random.pth')
        return load_predictor(cfg, build_on_meta(cfg), checkpoint, 'cpu')

    return load_with_random_weights


@pytest.fixture
def explorer(load, request):
    """The explorer of the config that a test's parameter names, with random weights."""
    predictor = load(request.getfixturevalue(request.param))
    names = choose_layers(predictor.model.backbone, None)
    return load_script('explore').Explorer(predictor, names, 0.3)


SLIDING = {'model.test_cfg': {'mode': 'slide', 'crop_size': (64, 64), 'stride': (32, 32)}}


@pytest.mark.parametrize(
    ('task', 'changes'),
    [
        ('classifier', {}),
        ('tiny_config', {}),
        ('tiny_segmentation', {}),
        ('tiny_segmentation', SLIDING),  # the weights are those over the whole image
    ],
)
def test_one_pass_captures_the_rows_of_every_point(task, changes, load, request, photo):
    predictor = load(request.getfixturevalue(task), changes)
    model = predictor.model
    calls = []
    model.backbone.register_forward_pre_hook(lambda *_: calls.append(1))
    names = choose_layers(model.backbone, None)[::-1]
    pixels = predictor.read(photo)
    found = explore(model, predictor.reader, names, pixels)
    assert [layer.name for layer in found.layers] == names
    assert np.array_equal(found.pixels, pixels[..., ::-1])
    assert len(calls) == 1

    point = (50, 20)
    tokens = {layer.name: found.token(layer, point) for layer in found.layers}
    analyzed = observe(
        model.backbone,
        network_input(model, predictor.reader, pixels),
        lambda layer: analyze_layer(layer, [tokens[layer.name]]),
    )
    for layer in found.layers:
        expected = analyzed[layer.name]
        mean = found.maps(layer, point, None)
        first = found.maps(layer, point, 0)
        entropies = found.entropies(layer, point)
        for kind, weights in expected.maps.items():
            relative = weights[0] * weights[0, 0].size
            np.testing.assert_allclose(mean[kind], relative.mean(axis=0), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(first[kind], relative[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(entropies[kind], expected.token_entropy[kind][0], rtol=1e-5)
    assert len(calls) == 2  # of `observe`


@pytest.mark.parametrize(
    ('task', 'changes', 'threshold', 'summary'),
    [
        ('classifier', {}, 0.3, ('blue ', 'green ', 'red ', '%')),
        # Untrained scores count too.
        ('tiny_config', {'model.test_cfg.rcnn.score_thr': 0.0}, 0.1, ('detections', ' 0.1: ')),
        ('tiny_config', {}, 1.0, ('0 detections with a score above 1.0',)),
        ('tiny_segmentation', {}, 0.3, ('share of the pixels: ', '%')),
    ],
)
def test_the_prediction_is_drawn_and_told(task, changes, threshold, summary, load, request, photo):
    predictor = load(request.getfixturevalue(task), changes)
    names = choose_layers(predictor.model.backbone, None)
    explorer = load_script('explore').Explorer(predictor, names, threshold)
    explored, drawing, told = explorer.open(photo)
    assert drawing.shape == explored.pixels.shape == (60, 90, 3)
    assert all(part in told for part in summary)
    is_drawn = not np.array_equal(drawing, explored.pixels)
    assert is_drawn == (task != 'classifier')


@pytest.mark.parametrize('explorer', ['classifier'], indirect=True)
def test_the_page_shows_a_point(explorer, photo):
    assert explorer.heads(SECOND) == ['mean', '1', '2']
    point, picture, prediction, text, maps, entropy = explorer.show(photo, FIRST, 'mean', None)
    assert point == (45, 30)
    assert picture.size == (900, 600)
    assert prediction
    assert 'Pixel 45, 30 is in the query of row 5, column 5 of 8 x 8.' in text
    assert maps.std() > 10 and entropy.std() > 10

    other = explorer.show(photo, SECOND, '2', (50, 20))
    assert other[0] == (50, 20)
    assert 'Pixel 50, 20 is in the query of row 2, column 3 of 4 x 4.' in other[3]
    assert 'at most 2.77, head 2 of 2' in other[3]
    mean = explorer.show(photo, SECOND, 'mean', (50, 20))
    assert 'at most 2.77, mean of 2 heads' in mean[3]
    for one, two in ((maps, other[4]), (other[4], mean[4]), (entropy, other[5])):
        assert one.shape != two.shape or not np.array_equal(one, two)


@pytest.mark.parametrize('explorer', ['classifier'], indirect=True)
def test_a_click_on_the_picture_is_a_pixel(explorer, photo):
    explored, drawing, _ = explorer.open(photo)
    for place, pixel in (((0, 0), (0, 0)), ((9, 10), (0, 1)), ((899, 599), (89, 59))):
        assert explored.pixel_at(place) == pixel
    before = np.asarray(explored.picture(drawing, (45, 30))).astype(int)
    after = np.asarray(explored.picture(drawing, (60, 10))).astype(int)
    rows, columns = np.nonzero(np.abs(before - after).max(axis=2))
    places = {explored.pixel_at(place) for place in zip(columns, rows, strict=True)}
    near = [point for point in places if max(abs(point[0] - 60), abs(point[1] - 10)) <= 2]
    assert near and {x for x, _ in places} <= {*range(43, 48), *range(58, 63)}


@pytest.mark.parametrize('explorer', ['classifier'], indirect=True)
def test_the_cropped_part_is_dark_and_has_no_query(explorer, photo):
    explored, _, _ = explorer.open(photo)
    white = np.full_like(explored.pixels, 255)
    picture = np.asarray(explored.picture(white, (45, 30)))
    assert picture[300, 20].tolist() == [89] * 3
    assert picture[300, 100].tolist() == [255] * 3
    with pytest.raises(UsageError, match='does not see'):
        explorer.show(photo, FIRST, 'mean', (2, 30))


@pytest.mark.parametrize('explorer', ['classifier'], indirect=True)
def test_recent_images_run_through_the_model_once(explorer, photo, tmp_path):
    calls = []
    explorer.predictor.model.backbone.register_forward_pre_hook(lambda *_: calls.append(1))
    paths = []
    for number in range(3):
        path = tmp_path / f'{number}.png'
        Image.new('RGB', (40, 40)).save(path)
        paths.append(path)
    for path in (*paths, *paths):
        explorer.show(path, FIRST, 'mean', None)
    passes_per_image = 2  # for the weights, and for the prediction
    assert len(calls) == 3 * passes_per_image


@pytest.mark.parametrize(
    ('explorer', 'size'),
    [('classifier', (1, 1)), ('tiny_config', (1, 30)), ('tiny_segmentation', (60, 1))],
    indirect=['explorer'],
)
def test_an_image_one_pixel_wide_is_shown(explorer, size, tmp_path):
    path = tmp_path / 'thin.png'
    Image.new('RGB', size).save(path)
    (x, y), *_ = explorer.show(path, explorer.names[0], 'mean', None)
    assert 0 <= x < size[0]
    assert 0 <= y < size[1]


@pytest.mark.parametrize('explorer', ['tiny_config'], indirect=True)
def test_images_that_cannot_be_read_are_refused(explorer, tmp_path):
    thin = tmp_path / 'thin.png'
    Image.new('RGB', (1, 500)).save(thin)
    with pytest.raises(UsageError, match='1 x 500 pixels, too narrow for the test transforms'):
        explorer.open(thin)
    broken = tmp_path / 'broken.jpg'
    broken.write_text('no picture')
    with pytest.raises(UsageError, match='not an image'):
        explorer.open(broken)


def refusal(capsys, *arguments):
    """The error with which explore.py refuses its arguments."""
    assert run_script('explore', *arguments) == 2
    return capsys.readouterr().err.removeprefix('error: ').rstrip()


def test_what_is_refused(classifier, write_checkpoint, tmp_path, capsys):
    checkpoint = write_checkpoint(classifier, tmp_path / 'random.pth')
    assert refusal(capsys, tmp_path / 'none.py', checkpoint).startswith(f'{tmp_path}/none.py: ')
    assert refusal(capsys, classifier, tmp_path / 'none.pth').startswith(f'{tmp_path}/none.pth: ')
    error = refusal(capsys, classifier, checkpoint, '--layers', 'stages.2.blocks.0.attn')
    assert error.startswith('--layers: ')
    assert error.endswith('did you mean stages.1.blocks.0.attn?')
    error = refusal(capsys, classifier, checkpoint, tmp_path / 'none.jpg')
    assert error == 'none.jpg: no such file'
    assert '--score-thr: ' in refusal(capsys, classifier, checkpoint, '--score-thr', '30')


def test_a_missing_gradio_is_named_with_its_extra(
    classifier, write_checkpoint, capsys, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, 'gradio', None)
    error = refusal(capsys, classifier, write_checkpoint(classifier, tmp_path / 'random.pth'))
    assert error.startswith('gradio: not installed')
    assert '[explore]' in error


@needs_gradio
def test_a_port_in_use_is_refused(classifier, write_checkpoint, tmp_path, capsys):
    checkpoint = write_checkpoint(classifier, tmp_path / 'random.pth')
    with socket.socket() as other:
        other.bind(('127.0.0.1', 0))
        other.listen()
        port = other.getsockname()[1]
        error = refusal(capsys, classifier, checkpoint, '--port', port)
    assert error.startswith(f'--port: expected a free port, got {port}')
