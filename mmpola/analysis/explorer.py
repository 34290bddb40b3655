"""The page of tools/explore.py: an image, the model's prediction, and the weights of the query that the user clicks.

One forward pass captures what the weights of any query, layer and head are computed from (`explore`). The page is the
file page.html, which asks a server on this computer for JSON. It sends no paths, but the bytes of an image, and then
the number that the image got. Other users and websites do not know the random token in the address.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
import secrets
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, NoReturn
from urllib.parse import parse_qsl

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from mmpola.analysis.capture import LayerInputs, linear_layers, observe, observing
from mmpola.analysis.figures import TITLES, Scene, draw_query, draw_query_entropy
from mmpola.analysis.statistics import Array, positive_sequence_entropy
from mmpola.analysis.weights import MAPS, attention_rows, without_rotary
from mmpola.layers import Grid
from mmpola.messages import UsageError, listed
from mmpola.prediction import Geometry, ImageFile, Predictor
from mmpola.prediction.drawing import shown_name
from mmpola.prediction.geometry import Point, centre, token_at, token_stride, visible_pixels
from mmpola.prediction.predict import write

HOST = '127.0.0.1'

KEPT = 3
"""Images whose captured tensors are kept; an older one is run through the model again when it is clicked."""

MAX_BYTES = 64 * 2**20
"""Largest file that can be dropped on the page."""

MAX_PIXELS = 50_000_000
"""Largest image that can be dropped on the page; a file of a few kilobytes may hold far more."""

FORMATS = ('BMP', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
"""Pillow's names of the formats that can be dropped; some others run programs."""

PAGE = Path(__file__).with_name('page.html')

HEADERS = {
    'Cache-Control': 'no-store',
    # The browser loads nothing from elsewhere, and no other page embeds this one.
    'Content-Security-Policy': "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    'Referrer-Policy': 'no-referrer',
    'X-Content-Type-Options': 'nosniff',
}

SHOWN = 900
"""Longer side of the image on the page, in pixels; the browser reduces it to the width of its column."""

HIDDEN = 0.35
"""Brightness of the part of the image that the network does not see."""

Rows = Callable[[Tensor], dict[str, Tensor]]
"""A function from the indices of queries [R] to their weights [H, R, M] for each of `MAPS`."""


@dataclass(frozen=True, eq=False)
class ExploredLayer:
    """A linear attention layer after a forward pass on one image.

    Attributes:
        name: of the layer.
        grid, key_grid: (h, w) of its queries and of its keys.
        stride, key_stride: side of a query token and of a key token in pixels of the network's input.
        weights: of queries over all keys.
        distributions: the same before a rotation, which may make weights negative.
    """

    name: str
    grid: Grid
    key_grid: Grid
    stride: int
    key_stride: int
    weights: Rows
    distributions: Rows

    @property
    def largest_entropy(self) -> float:
        """The entropy of equal weights for all keys, log M."""
        return math.log(math.prod(self.key_grid))


@dataclass(frozen=True, eq=False)
class Exploration:
    """An image, the model's prediction, and the weights of every query in every layer, computed when asked for.

    Memory is proportional to the number of tokens: the factors of the weights are kept, not the weights.

    Attributes:
        pixels: of the image, RGB uint8 [H, W, 3].
        drawn: the same with the prediction drawn over it; a classifier's is text only.
        prediction: in words.
        geometry: of the image in the network's input.
        layers: as chosen for `explore`.
    """

    pixels: NDArray[Any]
    drawn: NDArray[Any]
    prediction: str
    geometry: Geometry
    layers: list[ExploredLayer]

    def token(self, layer: ExploredLayer, point: Point) -> tuple[int, int]:
        """Return row and column of the query in a layer that contains a pixel of the image."""
        return token_at(point, self.geometry, layer.stride, layer.grid)

    def maps(self, layer: ExploredLayer, point: Point, head: int | None) -> dict[str, Array]:
        """Return the weights of a pixel's query over the keys, [h, w] for each of `MAPS`, times the number of keys.

        Args:
            layer: one of `layers`.
            point: a pixel of the image.
            head: from 0; None for the mean of the heads.
        """
        found = {}
        for kind, rows in layer.weights(self._query(layer, point)).items():
            weights = rows[:, 0].mean(dim=0) if head is None else rows[head, 0]
            found[kind] = (weights * len(weights)).unflatten(0, layer.key_grid).float().cpu().numpy()
        return found

    def entropies(self, layer: ExploredLayer, point: Point) -> dict[str, Array]:
        """Return the entropy of the same weights, of each head [H] in nats for each of `MAPS`."""
        rows = layer.distributions(self._query(layer, point))
        return {kind: positive_sequence_entropy(x[:, 0]).float().cpu().numpy() for kind, x in rows.items()}

    def _query(self, layer: ExploredLayer, point: Point) -> Tensor:
        """Return the index [1] of a pixel's query."""
        row, column = self.token(layer, point)
        return torch.tensor([row * layer.grid[1] + column])

    def view(self, chosen: int, head: int | None, point: Point | None) -> dict[str, Any]:
        """Return what the page shows for a point of the image in a layer and a head, with the images as data URLs.

        Args:
            chosen: index of the layer.
            head: from 0; None for the mean of the heads.
            point: a pixel; None for the centre of what the network sees.

        Raises:
            UsageError: the network does not see the pixel.
        """
        height, width = self.pixels.shape[:2]
        visible = visible_pixels(self.geometry, (height, width))
        point = point or centre(self.geometry, (height, width))
        if not (visible[0] <= point[0] < visible[2] and visible[1] <= point[1] < visible[3]):
            raise UsageError('The network does not see the dark part, which the test transforms crop away.')
        layer = self.layers[chosen]
        entropies = [self.entropies(other, point) for other in self.layers]
        shares = [
            {kind: values / other.largest_entropy for kind, values in found.items()}
            for other, found in zip(self.layers, entropies, strict=True)
        ]
        number = len(entropies[chosen]['both'])
        heads = f'mean of {number} heads' if head is None else f'head {head + 1} of {number}'
        heads = 'one head' if number == 1 else heads
        table = []
        for kind, values in entropies[chosen].items():
            value = values.mean() if head is None else values[head]
            table.append((TITLES[kind], f'{value:.2f} ({value / layer.largest_entropy:.0%})'))
        row, column = self.token(layer, point)
        scene = Scene(self.pixels, [point], self.geometry)
        title = f'{layer.name}: weights, {heads}'
        maps = draw_query(scene, self.maps(layer, point, head), layer.key_stride, title)
        entropy = draw_query_entropy([other.name for other in self.layers], shares, chosen, head)
        return {
            'point': point,
            'size': (width, height),
            'prediction': f'Prediction: {self.prediction}',
            'query': f'Pixel {point[0]}, {point[1]} is in the query of row {row + 1}, column {column + 1} of '
            f'{layer.grid[0]} x {layer.grid[1]}. Entropy of its weights in nats, at most '
            f'{layer.largest_entropy:.2f}, {heads}:',
            'table': table,
            'image': _data_url('jpeg', self._picture(point, visible).save),
            'maps': _data_url('png', maps.savefig),
            'entropy': _data_url('png', entropy.savefig),
        }

    def _picture(self, point: Point, visible: tuple[int, int, int, int]) -> Image.Image:
        """Return the image with its prediction and the point, dark where the network does not see."""
        height, width = self.pixels.shape[:2]
        scale = SHOWN / max(height, width)
        picture = Image.fromarray(self.drawn).resize((max(1, round(width * scale)), max(1, round(height * scale))))
        dark = picture.point(lambda value: value * HIDDEN)
        left, top, right, bottom = (round(edge * scale) for edge in visible)
        dark.paste(picture.crop((left, top, right, bottom)), (left, top))
        x, y = ((place + 0.5) * scale for place in point)
        radius, pen = max(dark.size) / 60, max(dark.size) / 300
        draw = ImageDraw.Draw(dark)
        for colour, wider in (('black', pen), ('white', 0)):
            box = (x - radius - wider, y - radius - wider, x + radius + wider, y + radius + wider)
            draw.ellipse(box, outline=colour, width=round(pen + 2 * wider) or 1)
        return dark


def _data_url(kind: str, save: Callable[..., Any]) -> str:
    """Return an image as a URL; `save` writes it into a file."""
    file = io.BytesIO()
    save(file, format=kind)
    return f'data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}'


def explore(predictor: Predictor, names: Sequence[str], threshold: float, path: Path) -> Exploration:
    """Predict an image and keep what the weights of the layers `names` are computed from, in this order.

    Detections with a score below `threshold` are left out.

    Raises:
        UsageError: the image cannot be read; the message does not name it.
    """
    batch = next(predictor.batches([ImageFile(path, Path('prediction'))], 1, _refuse))
    ((image, pixels, _),) = batch
    inputs = predictor.network_input(batch)
    input_size = (inputs.shape[2], inputs.shape[3])

    def keep(layer: LayerInputs) -> ExploredLayer:
        return _explored(layer, input_size)

    if (getattr(predictor.model, 'test_cfg', None) or {}).get('mode') == 'slide':
        # The prediction is made of windows of the image; the weights are those over all of it, as in `analyze`.
        (sample,) = predictor(batch)
        layers = observe(predictor.model.backbone, inputs, keep, names)
    else:
        with observing(predictor.model.backbone, keep, names) as layers:
            (sample,) = predictor(batch)
    with TemporaryDirectory() as folder:
        write(predictor, sample, image, pixels, Path(folder), threshold)
        found = json.loads(image.output(Path(folder), '.json').read_text())
        drawing = np.asarray(Image.open(image.output(Path(folder), '.jpg')))
    rgb = pixels[..., ::-1].copy()
    # A classifier's drawing has its classes beside the image.
    drawn = rgb if 'pred_score' in sample else drawing
    geometry = predictor.geometry(pixels.shape[:2])
    return Exploration(rgb, drawn, _in_words(found, threshold), geometry, [layers[name] for name in names])


def _refuse(_: ImageFile, reason: str) -> NoReturn:
    raise UsageError(reason)


def _explored(layer: LayerInputs, input_size: tuple[int, int]) -> ExploredLayer:
    # The layers make q, k, v and the gate as one tensor: a view of q would keep all of it in memory.
    inputs = replace(layer.attention, q=layer.attention.q.clone(memory_format=torch.contiguous_format))
    weights = attention_rows(inputs, MAPS)
    distributions = weights if inputs.rotary is None else attention_rows(without_rotary(inputs), MAPS)
    stride = token_stride(input_size, layer.grid)
    return ExploredLayer(
        layer.name, layer.grid, layer.key_grid, stride, stride * layer.sr_ratio, weights, distributions
    )


def _in_words(found: dict[str, Any], threshold: float) -> str:
    """Describe a prediction's JSON in a line."""
    if 'instances' in found:
        every = [f'{instance["class"]} {instance["score"]:.0%}' for instance in found['instances']]
        return f'{len(every)} detections with a score of at least {threshold}' + (f': {listed(every)}' if every else '')
    if 'label_map' in found:
        return 'share of the pixels: ' + listed(f'{entry["class"]} {entry["share"]:.0%}' for entry in found['classes'])
    return listed(f'{shown_name(entry["class"])} {entry["score"]:.1%}' for entry in found['classes'])


class RefusedError(Exception):
    """A request is answered with an HTTP status and one line."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Explorer:
    """Answers what the page asks for, one image at a time: the layers of the model report to one image.

    Args:
        predictor: model and test pipeline.
        names: of the layers, from `choose_layers`.
        threshold: lowest score of a detection.
        title: of the page.
        image: shown first; None for none.
        folder: empty, for the dropped images.

    Raises:
        UsageError: `image` cannot be read.
    """

    def __init__(
        self, predictor: Predictor, names: list[str], threshold: float, title: str, image: Path | None, folder: Path
    ) -> None:
        self.lock = Lock()
        self._explored = lru_cache(KEPT)(partial(explore, predictor, names, threshold))
        self._title, self._folder = title, folder
        layers = linear_layers(predictor.model.backbone)
        self._heads = {name: layers[name].num_heads for name in names}
        self._images: dict[str, Path] = {}
        if image is not None:
            try:
                self._add(image)
            except UsageError as error:
                raise UsageError(f'{image.name}: {error}') from None

    def start(self) -> dict[str, Any]:
        """Return what the page shows before the first image, and the image to begin with."""
        layers = [{'name': name, 'heads': heads} for name, heads in self._heads.items()]
        first = next(iter(self._images), None)
        return {'title': self._title, 'layers': layers, 'image': first, 'max_bytes': MAX_BYTES}

    def add(self, data: bytes) -> dict[str, Any]:
        """Predict a dropped image and return its number.

        Raises:
            UsageError: it is no image, cannot be read or is too large.
        """
        check_image(data)
        path = self._folder / secrets.token_hex(8)
        path.write_bytes(data)
        try:
            return {'image': self._add(path)}
        except UsageError:
            path.unlink()
            raise

    def view(self, query: dict[str, str]) -> dict[str, Any]:
        """Return what the page shows for a point of an image in a layer and a head.

        Args:
            query: `image`, its number; `layer`, its name; `head`, its number from 0, or none for the mean of the heads;
                `point`, column and row of a pixel such as 120,80, or none for the centre of what the network sees.

        Raises:
            UsageError: the query has other values, or the network does not see the pixel.
        """
        image, layer, head, point = (query.get(key, '') for key in ('image', 'layer', 'head', 'point'))
        if image not in self._images:
            raise UsageError(f'image: expected one of {len(self._images)} images since the start, got {image!r}')
        if layer not in self._heads:
            raise UsageError(f'layer: expected one of {listed(self._heads)}, got {layer!r}')
        if head not in ('', *map(str, range(self._heads[layer]))):
            raise UsageError(f'head: expected a number below {self._heads[layer]}, got {head!r}')
        place = re.fullmatch('([0-9]{1,9}),([0-9]{1,9})', point)
        if point and not place:
            raise UsageError(f'point: expected X,Y in pixels, got {point!r}')
        with self.lock:
            found = self._explored(self._images[image])
            chosen = list(self._heads).index(layer)
            pixel = (int(place[1]), int(place[2])) if place else None
            return found.view(chosen, int(head) if head else None, pixel)

    def _add(self, path: Path) -> str:
        with self.lock:
            self._explored(path)
            number = str(len(self._images))
            self._images[number] = path
        return number


def check_image(data: bytes) -> None:
    """Check the size of an image before it is decoded.

    Raises:
        UsageError: it is no image of one of `FORMATS`, or has more than `MAX_PIXELS`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
    except Image.DecompressionBombError as error:
        raise UsageError(f'expected at most {MAX_PIXELS:,} pixels ({error})') from None
    except Exception:  # decoders raise OSError, SyntaxError, ValueError and more for a broken file
        raise UsageError(f'not an image of the formats {", ".join(FORMATS)}') from None
    if width * height > MAX_PIXELS:
        raise UsageError(f'expected at most {MAX_PIXELS:,} pixels, got {width} x {height}')


class PageServer(ThreadingTCPServer):
    """Serves an `Explorer`, which is set before requests are handled.

    Attributes:
        token: a random part of the address, without which every request is refused.
    """

    allow_reuse_address = True
    daemon_threads = True
    explorer: Explorer

    def __init__(self, port: int) -> None:
        super().__init__((HOST, port), Handler)
        self.token = secrets.token_urlsafe(16)

    @property
    def address(self) -> str:
        """The address of the page."""
        return f'http://{HOST}:{self.server_address[1]}/{self.token}/'


class Handler(BaseHTTPRequestHandler):
    """Answers one request with the page, JSON, or the reason why it is refused."""

    server: PageServer
    timeout = 60

    def do_GET(self) -> None:
        """Answer with the page, its start or a view."""
        explorer = self.server.explorer
        query = dict(parse_qsl(self.path.partition('?')[2]))
        self._answer({'': PAGE.read_bytes, 'start': explorer.start, 'view': lambda: explorer.view(query)})

    def do_POST(self) -> None:
        """Take an image."""
        self._answer({'image': lambda: self.server.explorer.add(self._body())})

    def log_message(self, *_: Any) -> None:
        """Print nothing: requests contain the token."""

    def _answer(self, answers: dict[str, Callable[[], Any]]) -> None:
        """Send what the function for the path returns, HTML in bytes or a dict, or why there is nothing."""
        with suppress(ConnectionError, TimeoutError):  # the browser has closed the page
            try:
                name = self._allowed_name()
                if name not in answers:
                    raise RefusedError(HTTPStatus.NOT_FOUND, 'no such page')
                self._send(HTTPStatus.OK, answers[name]())
            except RefusedError as error:
                self._send(error.status, {'error': str(error)})
            except UsageError as error:
                self._send(HTTPStatus.BAD_REQUEST, {'error': str(error)})

    def _allowed_name(self) -> str:
        """Return the path below the token.

        Raises:
            RefusedError: another website sent the request, or something that does not know the token.
        """
        host, origin = self.headers.get('Host', ''), self.headers.get('Origin')
        # A website may have given this computer a name of its own.
        if host.partition(':')[0] not in (HOST, 'localhost') or origin not in (None, f'http://{host}'):
            raise RefusedError(HTTPStatus.FORBIDDEN, 'requests of other websites are refused')
        token, _, name = self.path.partition('?')[0].removeprefix('/').partition('/')
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise RefusedError(HTTPStatus.FORBIDDEN, 'expected the whole address that the script prints')
        return name

    def _body(self) -> bytes:
        """Return the body of the request, of which nothing is read if it is too long."""
        length = self.headers.get('Content-Length', '')
        if not length.isdecimal():
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, f'Content-Length: expected a number, got {length!r}')
        if len(length) > 12 or int(length) > MAX_BYTES:
            reason = f'expected a file of at most {MAX_BYTES:,} bytes, got {length}'
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        return self.rfile.read(int(length))

    def _send(self, status: HTTPStatus, content: bytes | dict[str, Any]) -> None:
        page = isinstance(content, bytes)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = 'text/html; charset=utf-8' if page else 'application/json'
        self.send_response(status)
        for name, value in {**HEADERS, 'Content-Type': kind, 'Content-Length': str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def listen(port: int) -> PageServer:
    """Return a server that listens on a port of this computer; 0 for a free one.

    Raises:
        UsageError: the port is taken, or is not a port that this user may use.
    """
    try:
        return PageServer(port)
    except (OSError, OverflowError) as error:
        raise UsageError(f'--port: expected a free port, got {port} ({error})') from None


def serve(
    predictor: Predictor, names: list[str], threshold: float, image: Path | None, title: str, server: PageServer
) -> None:
    """Serve the page until Ctrl-C; print its address.

    Args:
        predictor: model and test pipeline.
        names: of the layers, from `choose_layers`.
        threshold: lowest score of a detection.
        image: shown first; None for none.
        title: of the page.
        server: from `listen`.

    Raises:
        UsageError: `image` cannot be read.
    """
    with TemporaryDirectory() as folder:
        server.explorer = Explorer(predictor, names, threshold, title, image, Path(folder))
        print(f'{title}: {server.address} (Ctrl-C ends it)', flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
        server.explorer.lock.acquire()  # what is being computed ends first
    print('ended', flush=True)
