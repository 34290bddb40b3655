"""Serve the page of tools/explore.py on this computer only, until it is interrupted."""

from __future__ import annotations

import importlib.util
import os
import socket
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmpola.analysis.capture import linear_layers
from mmpola.analysis.exploration import explore
from mmpola.messages import UsageError
from mmpola.prediction import Predictor

HOST = '127.0.0.1'

KEPT = 3
"""Images whose captured tensors are kept; an older one is run through the model again when it is clicked."""

POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""Content security policy: the browser loads nothing from other servers."""


def check_installed() -> None:
    """Check that the packages of the page are installed.

    Raises:
        UsageError: Gradio is not installed.
    """
    if importlib.util.find_spec('gradio') is None:
        raise UsageError("gradio: not installed, but tools/explore.py needs it; pip install 'gradio>=6.31,<7'")


def listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of this computer; 0 for a free one.

    Raises:
        UsageError: the port is taken, or is not a port that this user may use.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(f'--port: expected a free port, got {port} ({error})') from None
    return listener


def serve(
    predictor: Predictor, names: list[str], threshold: float, image: Path | None, title: str, listener: socket.socket
) -> None:
    """Serve the page until Ctrl-C; print its address.

    Args:
        predictor: model and test pipeline.
        names: of the layers, from `choose_layers`.
        threshold: lowest score of a detection.
        image: shown first; None for none.
        title: of the page.
        listener: from `listen`.

    Raises:
        UsageError: `image` cannot be read.
    """
    explored = lru_cache(KEPT)(partial(explore, predictor, names, threshold))
    if image is not None:
        explored(image)
    heads = {name: linear_layers(predictor.model.backbone)[name].num_heads for name in names}
    with TemporaryDirectory() as folder:
        os.environ['GRADIO_TEMP_DIR'] = folder  # read when Gradio is imported
        from mmpola.analysis.page import CSS, build_page

        app = _app(build_page(title, explored, heads, image), CSS)
        print(f'{title}: http://{HOST}:{listener.getsockname()[1]} (Ctrl-C ends it)', flush=True)
        _run(app, listener)
    print('ended', flush=True)


def _app(page: Any, css: str) -> Any:
    """Return the web application of a page, which loads nothing from the network."""
    import gradio
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # Other websites that are open in the browser could otherwise reach the page under a name of theirs.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, 'localhost'])
    theme = gradio.themes.Default(font='system-ui', font_mono='monospace')
    options: dict[str, Any] = {'theme': theme, 'css': css, 'footer_links': [], 'run_history': False, 'ssr_mode': False}
    return gradio.mount_gradio_app(app, page, path='', server_name=HOST, **options)


def _run(app: Any, listener: socket.socket) -> None:
    """Run a web application until Ctrl-C."""
    import uvicorn

    headers = [('Content-Security-Policy', POLICY)]
    # Open pages keep a connection, whose end would be waited for.
    config = uvicorn.Config(app, headers=headers, log_level='critical', timeout_graceful_shutdown=1)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:  # raised again by uvicorn when it has shut down
        return
