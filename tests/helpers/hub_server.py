"""A local HTTP server that speaks as much of the Hugging Face Hub's API as a download needs."""

import hashlib
import io
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlparse

import pytest
import torch
from huggingface_hub import constants

COMMIT = 'c' * 40


def content(value=0.0):
    """A small checkpoint file."""
    file = io.BytesIO()
    torch.save({'model': {'x': torch.full((1000,), value)}}, file)
    return file.getvalue()


class Hub:
    """The files of one repository and the requests for them.

    Args:
        repository: 'OWNER/NAME'.
        files: path -> content.

    Attributes:
        gets: files that were sent.
        requests: paths of all requests.
        busy: files that the server cannot send at the moment.
        url: of the server.
    """

    def __init__(self, repository, files):
        self.repository = repository
        self.files = files
        self.gets = []
        self.requests = []
        self.busy = []
        self.url = ''

    def file_of(self, path):
        """Return the file that a URL's path means, with or without `resolve`; None for others."""
        path = unquote(urlparse(path).path).lstrip('/')
        prefix = f'{self.repository}/resolve/'
        if path.startswith(prefix):
            path = path.removeprefix(prefix).split('/', 1)[1]
        if path in self.files:
            return path
        return None


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        def send_list(self):
            """Answer which files there are."""
            entries = [{'type': 'file', 'path': name, 'size': 1, 'oid': 'x'} for name in hub.files]
            body = json.dumps(entries).encode()
            self.send_response(200)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            return body

        def do_HEAD(self):
            hub.requests.append(self.path)
            if self.path.startswith(f'/api/models/{hub.repository}/tree/main'):
                return self.send_list()
            name = hub.file_of(self.path)
            if name is None:
                self.send_response(404)
                self.send_header('X-Error-Code', 'EntryNotFound')
                self.send_header('Content-Length', '0')
                self.end_headers()
                return b''
            body = hub.files[name]
            self.send_response(503 if name in hub.busy else 200)
            self.send_header('Content-Length', str(len(body)))
            self.send_header('ETag', f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header('X-Repo-Commit', COMMIT)
            self.end_headers()
            return body

        def do_GET(self):
            if hub.file_of(self.path):  # huggingface_hub asks for other things too
                hub.gets.append(hub.file_of(self.path))
            self.wfile.write(self.do_HEAD())

        def log_message(self, *_):
            pass

    return Handler


@contextmanager
def serve(hub, folder):
    """Serve `hub` on a free local port as the Hugging Face Hub; both caches are in `folder`."""
    server = ThreadingHTTPServer(('127.0.0.1', 0), _handler(hub))
    hub.url = f'http://127.0.0.1:{server.server_address[1]}'
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv('TORCH_HOME', str(folder / 'torch'))
            patch.setattr(constants, 'HF_HUB_CACHE', str(folder / 'hub'))
            patch.setattr(constants, 'ENDPOINT', hub.url)
            template = hub.url + '/{repo_id}/resolve/{revision}/{filename}'
            patch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
            yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
