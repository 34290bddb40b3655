"""tools/explore.py: what it captures of an image, its page in a browser, and what it refuses."""

import io
import json
import re
import shutil
import signal
import socket
import struct
import threading
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image

from mmpola.apps.analysis import analyze_layer, choose_layers, explorer, observe
from mmpola.apps.analysis.explorer import explore
from mmpola.apps.prediction.files import ImageFile
from mmpola.apps.prediction.predictor import load_predictor
from mmpola.engine.validate import build_on_meta
from mmpola.messages import UsageError
from tests.helpers.processes import run_script

BROWSERS = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')


@pytest.fixture
def predictor(request, write_checkpoint, tmp_path):
    """The predictor of the config that a test's parameter names, with random weights."""
    cfg = Config.fromfile(request.getfixturevalue(request.param[0]))
    cfg.merge_from_dict(request.param[1])
    config = tmp_path / 'config.py'
    cfg.dump(config)
    init_default_scope(cfg.default_scope)
    return load_predictor(
        cfg, build_on_meta(cfg), write_checkpoint(config, tmp_path / 'random.pth'), 'cpu'
    )


DETECTING = {'model.test_cfg.rcnn.score_thr': 0.0}  # untrained scores count too
SLIDING = {'model.test_cfg': {'mode': 'slide', 'crop_size': (64, 64), 'stride': (32, 32)}}


@pytest.mark.parametrize(
    ('predictor', 'passes', 'threshold', 'prediction'),
    [
        (('classifier', {}), 1, 0.3, r'(blue|green|red) \d+\.\d%, .*'),
        (
            ('tiny_config', DETECTING),
            1,
            0.1,
            r'[1-9]\d* detections with a score of at least 0.1: .*',
        ),
        (('tiny_config', DETECTING), 1, 1.0, r'0 detections with a score of at least 1.0'),
        (('tiny_segmentation', {}), 1, 0.3, r'share of the pixels: .*'),
        # The windows, then the whole image.
        (('tiny_segmentation', SLIDING), None, 0.3, r'share of the pixels: .*'),
    ],
    indirect=['predictor'],
    ids=['classifier', 'detector', 'threshold', 'segmenter', 'windows'],
)
def test_one_prediction_captures_the_rows_of_every_point(
    predictor, passes, threshold, prediction, photo
):
    backbone, calls = predictor.model.backbone, []
    backbone.register_forward_pre_hook(lambda *_: calls.append(1))
    names = choose_layers(backbone, None)[::-1]
    found = explore(predictor, names, threshold, photo)
    assert [layer.name for layer in found.layers] == names
    assert re.fullmatch(prediction, found.prediction)
    assert found.drawn.shape == found.pixels.shape == (60, 90, 3)
    before = len(calls)
    assert passes in (None, before)

    point = (50, 20)
    maps = [(found.maps(layer, point, None), found.maps(layer, point, 0)) for layer in found.layers]
    entropies = [found.entropies(layer, point) for layer in found.layers]
    assert len(calls) == before
    inputs = predictor.network_input([predictor.read(ImageFile(photo, Path('photo')))])
    tokens = {layer.name: found.token(layer, point) for layer in found.layers}
    analyzed = observe(backbone, inputs, lambda layer: analyze_layer(layer, [tokens[layer.name]]))
    for (mean, first), entropy, name in zip(maps, entropies, names, strict=True):
        expected = analyzed[name]
        for kind, weights in expected.maps.items():
            np.testing.assert_allclose(
                mean[kind], weights[0].mean(axis=0) * weights[0, 0].size, rtol=1e-5, atol=1e-6
            )
            np.testing.assert_allclose(
                first[kind], weights[0, 0] * weights[0, 0].size, rtol=1e-5, atol=1e-6
            )
            np.testing.assert_allclose(entropy[kind], expected.token_entropy[kind][0], rtol=1e-5)


@pytest.mark.parametrize(
    ('predictor', 'size'),
    [
        (('classifier', {}), (1, 1)),
        (('tiny_config', {}), (1, 30)),
        (('tiny_segmentation', {}), (60, 1)),
    ],
    indirect=['predictor'],
)
def test_an_image_one_pixel_wide_is_shown(predictor, size, tmp_path):
    path = tmp_path / 'thin.png'
    Image.new('RGB', size).save(path)
    found = explore(predictor, choose_layers(predictor.model.backbone, None)[:1], 0.3, path)
    view = found.view(0, None, None)
    assert view['size'] == size
    assert all(0 <= place < side for place, side in zip(view['point'], size, strict=True))


@pytest.mark.parametrize('predictor', [('tiny_config', {})], indirect=True)
def test_an_image_that_is_resized_to_nothing_is_refused(predictor, tmp_path):
    path = tmp_path / 'thin.png'
    Image.new('RGB', (1, 500)).save(path)
    with pytest.raises(UsageError, match='1 x 500 pixels, too narrow for the test transforms'):
        explore(predictor, choose_layers(predictor.model.backbone, None), 0.3, path)


@pytest.fixture
def address(predictor, photo):
    """The address of a page that shows the photo, served by a thread."""
    listening = explorer.listen(0)
    names = choose_layers(predictor.model.backbone, None)
    served = explorer.Explorer(predictor, names, 0.3, 'small', photo)
    thread = threading.Thread(target=explorer.serve, args=(listening, served))
    thread.start()
    yield listening.address
    listening.shutdown()
    thread.join()
    listening.server_close()


def answer(address, path, data=None, **headers):
    """The status and the content of the answer to a request, a POST if there are data."""
    names = {name.replace('_', '-'): value for name, value in headers.items()}
    request = urllib.request.Request(f'{address}{path}', data, names)
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return found.status, json.loads(found.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())['error']


def encoded(image, kind='png'):
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


served = pytest.mark.parametrize('predictor', [('classifier', {})], indirect=True)
LAYER = 'stages.0.blocks.0.attn'


@served
def test_a_dropped_image_is_shown(address):
    status, start = answer(address, 'start')
    assert (status, start['title'], start['image'], start['layers'][0]['name']) == (
        200,
        'small',
        '0',
        LAYER,
    )
    number = answer(address, 'image', encoded(Image.new('RGB', (40, 40))))[1]['image']
    for image, size in (('0', [90, 60]), (number, [40, 40])):
        status, view = answer(address, f'view?{urlencode({"image": image, "layer": LAYER})}')
        assert (status, view['size']) == (200, size)
    query = {'image': '0', 'layer': 'stages.1.blocks.0.attn', 'head': 1, 'point': '50,20'}
    text = answer(address, f'view?{urlencode(query)}')[1]['query']
    assert text.startswith('Pixel 50, 20 is in the query of row 2, column 3 of 4 x 4.')
    assert text.endswith('head 2 of 2:')


@served
def test_paths_and_addresses_are_no_images(address, photo):
    for image in (
        photo,
        photo.parent / 'none.png',
        f'file://{photo}',
        'http://127.0.0.1/a.png',
        '../photo.png',
        '-1',
    ):
        found = answer(address, f'view?{urlencode({"image": image, "layer": LAYER})}')
        assert found == (
            400,
            f'image: expected one of 1 images since the start, got {str(image)!r}',
        )
        assert answer(address, 'image', str(image).encode())[0] == 400
        assert answer(address, str(image))[0] == 404
    for layer, head, point in (
        ('blocks', '', ''),
        (LAYER, '2', ''),
        (LAYER, '', '90,10'),
        (LAYER, '', '1e9,-1'),
    ):
        query = {'image': '0', 'layer': layer, 'head': head, 'point': point}
        assert answer(address, f'view?{urlencode(query)}')[0] == 400


@served
def test_others_get_no_answer(address):
    root, wrong = address[: address.index('/', 7) + 1], address[:-2] + '/'
    host = urlsplit(address).netloc
    query = f'view?{urlencode({"image": "0", "layer": LAYER})}'
    for path, data in (
        ('', None),
        ('start', None),
        (query, None),
        ('image', encoded(Image.new('RGB', (40, 40)))),
    ):
        assert answer(root, path, data) == (
            403,
            'expected the whole address that the script prints',
        )
        assert answer(wrong, path, data)[0] == 403
        for origin in ('http://evil.example', 'null', 'http://127.0.0.1:1', f'https://{host}'):
            assert answer(address, path, data, Origin=origin) == (
                403,
                'requests of other websites are refused',
            )
        assert answer(address, path, data, Host='evil.example')[0] == 403
    assert answer(address, 'start', Origin=f'http://{host}')[0] == 200


def png(width, height):
    """A PNG file of zeros."""

    def chunk(kind, data):
        return (
            struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
        )

    header = struct.pack('>IIBBBBB', width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 + width // 8) * height)
    return (
        b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', rows) + chunk(b'IEND', b'')
    )


@served
def test_too_much_is_refused_before_it_is_decoded(address):
    for width, height in ((10_000, 8000), (20_000, 16_000)):
        status, reason = answer(address, 'image', png(width, height))
        assert (status, reason.split(' pixels')[0]) == (400, 'expected at most 50,000,000')
    for length in (explorer.MAX_BYTES + 1, 2**40):
        found = answer(address, 'image', b'', Content_Length=str(length))
        assert found == (413, f'expected a file of at most 67,108,864 bytes, got {length}')
    for length in ('-1', 'all'):
        assert answer(address, 'image', b'', Content_Length=length)[0] == 411
    script = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n'  # Pillow would start Ghostscript
    assert answer(address, 'image', script) == (
        400,
        'not an image of the formats BMP, JPEG, PNG, PPM, TIFF, WEBP',
    )
    truncated = encoded(Image.new('RGB', (40, 40)))[:60]
    assert answer(address, 'image', truncated)[0] == 400


@pytest.fixture
def browser():
    """A page of a headless browser of this machine."""
    playwright = pytest.importorskip(
        'playwright.sync_api', reason='Playwright, which drives a browser, is missing'
    )
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f'no browser: none of {", ".join(BROWSERS)} is on the PATH')
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=['--no-sandbox'])
        yield browser.new_page(viewport={'width': 1280, 'height': 1000})
        browser.close()


@pytest.mark.slow
def test_the_page_in_a_browser(browser, classifier, write_checkpoint, photo, start_tool, tmp_path):
    from playwright.sync_api import expect

    expect.set_options(timeout=120_000)
    checkpoint = write_checkpoint(classifier, tmp_path / 'random.pth')
    process = start_tool('explore.py', classifier, checkpoint)
    address = re.fullmatch(
        r'small: (http://127\.0\.0\.1:\d+/\S+/) \(Ctrl-C ends it\)\n', process.stdout.readline()
    )[1]
    requests = []
    browser.context.on('request', lambda request: requests.append(request.url))
    browser.goto(address)
    maps, entropy, query = (browser.locator(part) for part in ('#maps', '#entropy', '#query'))
    upload, picture = browser.locator('#drop input[type=file]'), browser.locator('#image')

    def click(x, y):
        """Click the centre of a pixel of the photo."""
        box = picture.bounding_box()
        picture.click(
            position={'x': (x + 0.5) / 90 * box['width'], 'y': (y + 0.5) / 60 * box['height']}
        )

    upload.set_input_files(photo)
    expect(query).to_contain_text('Pixel 45, 30 is in the query of row 5, column 5 of 8 x 8.')
    expect(browser.locator('#prediction')).to_contain_text(
        re.compile(r'Prediction: (blue|green|red) \d')
    )

    before = maps.get_attribute('src'), entropy.get_attribute('src'), picture.get_attribute('src')
    click(60, 10)
    expect(query).to_contain_text('Pixel 60, 10 is in the query of row 2, column 7 of 8 x 8.')
    for part, source in zip((maps, entropy, picture), before, strict=True):
        expect(part).not_to_have_attribute('src', source)

    before = maps.get_attribute('src')
    browser.locator('#layer').select_option('stages.1.blocks.0.attn')
    expect(query).to_contain_text(
        'row 1, column 4 of 4 x 4. Entropy of its weights in nats, at most 2.77, mean of 2'
    )
    expect(maps).not_to_have_attribute('src', before)
    before = maps.get_attribute('src')
    browser.locator('#head').get_by_text('2', exact=True).click()
    expect(query).to_contain_text('head 2 of 2')
    expect(maps).not_to_have_attribute('src', before)

    expect(browser.get_by_role('heading')).to_have_text('What the attention of small reads')
    for name in ('maps.png', 'entropy.png'):
        with browser.expect_download() as download:
            browser.get_by_role('link', name=name).click()
        assert download.value.suggested_filename == name
        assert Image.open(download.value.path()).format == 'PNG'
    browser.set_viewport_size({'width': 390, 'height': 800})  # a phone
    assert browser.evaluate('document.documentElement.scrollWidth') == 390
    browser.set_viewport_size({'width': 1280, 'height': 1000})

    click(2, 30)
    expect(browser.get_by_text('The network does not see the dark part')).to_be_visible()
    broken = tmp_path / 'broken.jpg'
    broken.write_text('no picture')
    upload.set_input_files(broken)
    expect(browser.get_by_text('broken.jpg: not an image')).to_be_visible()
    expect(query).to_contain_text('Pixel 60, 10')

    assert {
        urlsplit(url).hostname for url in requests if not url.startswith(('data:', 'blob:'))
    } == {'127.0.0.1'}
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120)[0] == 'ended\n'
    assert process.returncode == 0


def refusal(capsys, *arguments):
    """The error with which explore.py refuses its arguments."""
    assert run_script('explore', *arguments) == 2
    return capsys.readouterr().err.removeprefix('error: ').rstrip()


def test_what_is_refused(classifier, write_checkpoint, tmp_path, capsys):
    checkpoint = write_checkpoint(classifier, tmp_path / 'random.pth')
    assert (
        refusal(capsys, tmp_path / 'none.py', checkpoint)
        == f'{tmp_path}/none.py: no such config file'
    )
    assert (
        refusal(capsys, classifier, tmp_path / 'none.pth')
        == f'{tmp_path}/none.pth: no such checkpoint'
    )
    assert refusal(capsys, classifier, checkpoint, '--layers', 'stages.2.blocks.0.attn') == (
        '--layers: expected layers among stages.0.blocks.0.attn, stages.1.blocks.0.attn, got stages.2.blocks.0.attn; '
        'did you mean stages.1.blocks.0.attn?'
    )
    assert (
        refusal(capsys, classifier, checkpoint, tmp_path / 'none.jpg') == 'none.jpg: no such file'
    )
    assert refusal(capsys, classifier, checkpoint, '--score-thr', '30') == (
        '--score-thr: expected a number in [0, 1], got 30'
    )
    with socket.socket() as other:
        other.bind(('127.0.0.1', 0))
        other.listen()
        port = other.getsockname()[1]
        assert refusal(capsys, classifier, checkpoint, '--port', port).startswith(
            f'--port: expected a free port, got {port} ('
        )


def test_the_page_gets_the_score_threshold(
    classifier, write_checkpoint, photo, tmp_path, capsys, monkeypatch
):
    def explore(predictor, names, threshold, path):
        raise UsageError(threshold)

    monkeypatch.setattr('mmpola.apps.analysis.explorer.explore', explore)
    arguments = classifier, write_checkpoint(classifier, tmp_path / 'random.pth'), photo
    assert refusal(capsys, *arguments) == 'photo.png: 0.3'
    assert refusal(capsys, *arguments, '--score-thr', '0.7') == 'photo.png: 0.7'
