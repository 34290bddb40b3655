"""A local HTTP server that speaks as much of the Hugging Face Hub's API as a download needs."""

import hashlib
import io
import json
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
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


def file_headers(content):
    """What the hub says about a file."""
    digest = hashlib.sha256(content).hexdigest()
    return {
        'Content-Length': str(len(content)),
        'ETag': f'"{digest}"',
        'X-Linked-ETag': f'"{digest}"',
        'X-Linked-Size': str(len(content)),
        'X-Repo-Commit': COMMIT,
    }


class Hub:
    """The files of one repository and what went over the wire.

    Args:
        repository: 'OWNER/NAME'.
        files: path -> content.

    Attributes:
        gets: paths of all GET requests.
        requests: paths of all requests.
        tokens: (path, value of the header Authorization) of all GET requests.
        answers: path -> (status, headers, body) that is sent instead of the file; a body may be an
            iterator over pieces, which are sent until the client has enough.
        dripping: paths whose answers are headers without an end, each sent in time; '' for the
            list.
        silent: paths that are answered only after `speak` is set; '' for the list of files.
    """

    def __init__(self, repository, files):
        self.repository = repository
        self.files = files
        self.gets = []
        self.requests = []
        self.tokens = []
        self.answers = {}
        self.silent = set()
        self.speak = Event()
        self.dripping = set()
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

    def endless_headers(self):
        """Yield headers until the server stops, or for a minute."""
        for number in range(600):
            if not self.speak.wait(0.1):
                yield f'X-{number}', 'wait'

    def answer(self, path):
        """Return status, headers and body for a URL's path."""
        listing = path.startswith(f'/api/models/{self.repository}')
        name = '' if listing else self.file_of(path)
        if name in self.dripping:
            return 200, self.endless_headers(), b''
        if name in self.silent:
            self.speak.wait(60)
        if listing:
            siblings = [{'rfilename': name} for name in self.files]
            return (
                200,
                {},
                json.dumps({'id': self.repository, 'sha': COMMIT, 'siblings': siblings}).encode(),
            )
        if name is None:
            return 404, {'X-Error-Code': 'EntryNotFound'}, b'{"error": "Entry not found"}'
        content = self.files[name]
        return self.answers.get(name, (200, file_headers(content), content))


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            hub.requests.append(self.path)
            status, headers, body = hub.answer(self.path)
            self.send_response(status)
            for key, value in headers.items() if isinstance(headers, dict) else headers:
                self.send_header(key, value)
                if hub.dripping:
                    self.flush_headers()
            self.end_headers()
            return body

        def do_GET(self):
            hub.gets.append(self.path)
            hub.tokens.append((self.path, self.headers['Authorization']))
            with suppress(ConnectionError):  # by a client that has given up
                body = self.do_HEAD()
                for piece in [body] if isinstance(body, bytes) else body:
                    self.wfile.write(piece)

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
        hub.speak.set()
        server.shutdown()
        server.server_close()
        thread.join()
