"""A local HTTP server that speaks as much of the Hugging Face Hub's API as a download needs."""

import hashlib
import io
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from urllib.parse import unquote, urlparse

import torch

COMMIT = 'c' * 40


def content(value=0.0):
    """A small checkpoint file."""
    file = io.BytesIO()
    torch.save({'model': {'x': torch.full((1000,), value)}}, file)
    return file.getvalue()


class Hub:
    """The files of one repository and what went over the wire.

    Args:
        repository: 'OWNER/NAME'.
        files: path -> content.

    Attributes:
        gets: paths of all GET requests.
        requests: paths of all requests.
        truncated: paths whose connection ends after half of the content.
        altered: paths whose content differs from the SHA-256 that the hub gives.
        answers: path -> (status, headers, body) of a server that answers in its own way.
        silent: paths that are answered only after `speak` is set; '' for the list of files.
    """

    def __init__(self, repository, files):
        self.repository, self.files = repository, files
        self.gets, self.requests, self.truncated, self.altered = [], [], set(), set()
        self.answers, self.silent, self.speak = {}, set(), Event()
        self.url = ''

    def file_of(self, path):
        """The file that a URL's path means, with or without the hub's `resolve` part; None for others."""
        path = unquote(urlparse(path).path).lstrip('/')
        prefix = f'{self.repository}/resolve/'
        if path.startswith(prefix):
            path = path.removeprefix(prefix).split('/', 1)[1]
        return path if path in self.files else None


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            hub.gets.append(self.path)
            self.answer(body=True)

        def answer(self, body):
            hub.requests.append(self.path)
            api = f'/api/models/{hub.repository}'
            if self.path.startswith(api):
                if '' in hub.silent:
                    hub.speak.wait(60)
                entries = [{'type': 'file', 'path': name, 'size': len(x), 'oid': name} for name, x in hub.files.items()]
                tree = '/tree/' in self.path
                info = {'id': hub.repository, 'sha': COMMIT, 'siblings': [{'rfilename': name} for name in hub.files]}
                return self.send(200, json.dumps(entries if tree else info).encode(), body)
            name = hub.file_of(self.path)
            if name is None:
                return self.send(404, b'{"error": "Entry not found"}', body, {'X-Error-Code': 'EntryNotFound'})
            if name in hub.silent:
                hub.speak.wait(60)
            if name in hub.answers:
                return self.send_raw(*hub.answers[name], body)
            content = hub.files[name]
            digest = hashlib.sha256(content).hexdigest()
            headers = {
                'ETag': f'"{digest}"',
                'X-Linked-ETag': f'"{digest}"',
                'X-Linked-Size': str(len(content)),
                'X-Repo-Commit': COMMIT,
            }
            if name in hub.altered:
                content = bytes([content[0] ^ 1]) + content[1:]
            return self.send(200, content, body, headers, truncate=name in hub.truncated)

        def send(self, status, content, body, headers=None, truncate=False):
            self.send_response(status)
            self.send_header('Content-Length', str(len(content)))
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(content[: len(content) // 2] if truncate else content)
            if truncate:
                self.close_connection = True

        def send_raw(self, status, headers, content, body):
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(content)
            self.close_connection = True

        def log_message(self, *_):
            pass

    return Handler


@contextmanager
def serve(hub):
    """Serve `hub` on a free local port; sets its `url`."""
    server = ThreadingHTTPServer(('127.0.0.1', 0), _handler(hub))
    hub.url = f'http://127.0.0.1:{server.server_address[1]}'
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.speak.set()
        server.shutdown()
        server.server_close()
        thread.join()
