"""The page of tools/explore.py in a browser."""

import importlib.util
import re
import shutil
import signal
from urllib.parse import urlsplit

import pytest
from PIL import Image

BROWSERS = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')


@pytest.fixture
def browser():
    """A page of a headless browser of this machine."""
    if importlib.util.find_spec('gradio') is None:
        pytest.skip('gradio, which serves the page, is missing')
    playwright = pytest.importorskip(
        'playwright.sync_api', reason='Playwright, which drives a browser, is missing'
    )
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f'no browser: none of {", ".join(BROWSERS)} is on the PATH')
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=['--no-sandbox'])
        yield browser.new_page(viewport={'width': 1240, 'height': 1000})
        browser.close()


@pytest.mark.slow
def test_the_page_in_a_browser(browser, classifier, write_checkpoint, photo, start_tool, tmp_path):
    from playwright.sync_api import expect

    expect.set_options(timeout=30_000)
    checkpoint = write_checkpoint(classifier, tmp_path / 'random.pth')
    process = start_tool('explore.py', classifier, checkpoint)
    address = re.search(r'small: (http://127\.0\.0\.1:\d+/)', process.stdout.readline())[1]
    requests = []
    browser.context.on('request', lambda request: requests.append(request.url))
    browser.goto(address)
    expect(browser.get_by_role('heading')).to_have_text('What the attention of small reads')
    upload = browser.locator('input[type=file]')
    query = browser.locator('#query')
    picture = browser.locator('#picture img')
    maps = browser.locator('#maps img')
    entropy = browser.locator('#entropy img')

    def click(x, y):
        """Click the centre of a pixel of the photo."""
        box = picture.bounding_box()
        place = {'x': (x + 0.5) / 90 * box['width'], 'y': (y + 0.5) / 60 * box['height']}
        picture.click(position=place)

    def sources():
        return [image.get_attribute('src') for image in (picture, maps, entropy)]

    # An image is uploaded.
    upload.set_input_files(photo)
    expect(query).to_contain_text('Pixel 45, 30 is in the query of row 5, column 5 of 8 x 8.')
    expect(browser.get_by_label('Prediction')).to_have_value(re.compile(r'(blue|green|red) \d'))

    # A click chooses the query.
    before = sources()
    click(60, 10)
    expect(query).to_contain_text('Pixel 60, 10 is in the query of row 2, column 6 of 8 x 8.')
    for image, source in zip((picture, maps, entropy), before, strict=True):
        expect(image).not_to_have_attribute('src', source)

    # So do layer and head.
    before = maps.get_attribute('src')
    browser.get_by_label('Layer').click()
    browser.get_by_role('option', name='stages.1.blocks.0.attn').click()
    expect(query).to_contain_text('row 1, column 3 of 4 x 4.')
    expect(query).to_contain_text('at most 2.77, mean of 2 heads')
    expect(maps).not_to_have_attribute('src', before)
    before = maps.get_attribute('src')
    browser.get_by_role('radio', name='2').check()
    expect(query).to_contain_text('head 2 of 2')
    expect(maps).not_to_have_attribute('src', before)

    # Figures are saved.
    for name in ('#maps', '#entropy'):
        with browser.expect_download() as download:
            browser.locator(name).get_by_role('button', name='Download').click()
        assert Image.open(download.value.path()).format == 'PNG'

    # The page fits a phone.
    browser.set_viewport_size({'width': 390, 'height': 800})
    assert browser.evaluate('document.documentElement.scrollWidth') == 390
    browser.set_viewport_size({'width': 1240, 'height': 1000})

    # Mistakes are told, and what is shown stays.
    click(2, 30)
    expect(browser.get_by_text('The network does not see the dark part')).to_be_visible()
    expect(query).to_contain_text('Pixel 60, 10')
    broken = tmp_path / 'broken.jpg'
    broken.write_text('no picture')
    upload.set_input_files(broken)
    expect(browser.get_by_text('broken.jpg: not an image')).to_be_visible()
    expect(query).to_contain_text('Pixel 60, 10')

    hosts = {urlsplit(url).hostname for url in requests if not url.startswith(('data:', 'blob:'))}
    assert hosts == {'127.0.0.1'}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 0
