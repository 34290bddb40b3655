"""The server of the page of tools/explore.py, where the user drops images and clicks points of them.

The page is the file page.html, which asks a server on this computer for JSON. It sends no paths,
but the bytes of an image, and then the number that the image got. Other users and websites do not
know the random token in the address.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

from PIL import Image

from mmpola.apps.analysis.capture import linear_layers
from mmpola.apps.analysis.exploration import explore
from mmpola.apps.prediction.predictor import Predictor
from mmpola.messages import UsageError, listed

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

    Raises:
        UsageError: `image` cannot be read.
    """

    def __init__(
        self,
        predictor: Predictor,
        names: list[str],
        threshold: float,
        title: str,
        image: Path | None,
    ) -> None:
        self.lock = Lock()
        self._explored = lru_cache(KEPT)(partial(explore, predictor, names, threshold))
        self.title, self._folder = title, TemporaryDirectory()
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
        return {'title': self.title, 'layers': layers, 'image': first, 'max_bytes': MAX_BYTES}

    def add(self, data: bytes) -> dict[str, Any]:
        """Predict a dropped image and return its number.

        Raises:
            UsageError: it is no image, cannot be read or is too large.
        """
        check_image(data)
        path = Path(self._folder.name) / secrets.token_hex(8)
        path.write_bytes(data)
        try:
            return {'image': self._add(path)}
        except UsageError:
            path.unlink()
            raise

    def view(self, query: dict[str, str]) -> dict[str, Any]:
        """Return what the page shows for a point of an image in a layer and a head.

        Args:
            query: `image`, its number; `layer`, its name; `head`, its number from 0, or none for
                the mean of the heads; `point`, column and row of a pixel such as 120,80, or none
                for the centre of what the network sees.

        Raises:
            UsageError: the query has other values, or the network does not see the pixel.
        """
        image, layer, head, point = (
            query.get(key, '') for key in ('image', 'layer', 'head', 'point')
        )
        if image not in self._images:
            raise UsageError(
                f'image: expected one of {len(self._images)} images since the start, got {image!r}'
            )
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
        self._answer(
            {'': PAGE.read_bytes, 'start': explorer.start, 'view': lambda: explorer.view(query)}
        )

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
            RefusedError: another website sent the request, or something that does not know the
                token.
        """
        host, origin = self.headers.get('Host', ''), self.headers.get('Origin')
        # A website may have given this computer a name of its own.
        if host.partition(':')[0] not in (HOST, 'localhost') or origin not in (
            None,
            f'http://{host}',
        ):
            raise RefusedError(HTTPStatus.FORBIDDEN, 'requests of other websites are refused')
        token, _, name = self.path.partition('?')[0].removeprefix('/').partition('/')
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise RefusedError(
                HTTPStatus.FORBIDDEN, 'expected the whole address that the script prints'
            )
        return name

    def _body(self) -> bytes:
        """Return the body of the request, of which nothing is read if it is too long."""
        length = self.headers.get('Content-Length', '')
        if not length.isdecimal():
            raise RefusedError(
                HTTPStatus.LENGTH_REQUIRED, f'Content-Length: expected a number, got {length!r}'
            )
        if len(length) > 12 or int(length) > MAX_BYTES:
            reason = f'expected a file of at most {MAX_BYTES:,} bytes, got {length}'
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        return self.rfile.read(int(length))

    def _send(self, status: HTTPStatus, content: bytes | dict[str, Any]) -> None:
        page = isinstance(content, bytes)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = 'text/html; charset=utf-8' if page else 'application/json'
        self.send_response(status)
        for name, value in {
            **HEADERS,
            'Content-Type': kind,
            'Content-Length': str(len(body)),
        }.items():
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


def serve(server: PageServer, explorer: Explorer) -> None:
    """Serve the page until Ctrl-C; print its address."""
    server.explorer = explorer
    print(f'{explorer.title}: {server.address} (Ctrl-C ends it)', flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
    explorer.lock.acquire()  # what is being computed ends first
    print('ended', flush=True)
