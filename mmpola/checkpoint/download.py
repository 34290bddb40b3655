"""Download a checkpoint whole or not at all, once per machine, within limits of time and size."""

from __future__ import annotations

import hashlib
import pickle
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TypeVar
from urllib.request import Request, urlopen

import torch
from filelock import FileLock, Timeout
from tqdm import tqdm

SILENT_SECONDS = 30.0
"""How long a server may send nothing."""

ANSWER_SECONDS = 120.0
"""How long a server may take to begin its answer, even if it sends a little now and then."""

TOTAL_SECONDS = 7200.0
"""How long a download may take, and how long to wait for that of another process."""

MAX_BYTES = 16 * 2**30
"""The largest file that is downloaded."""

OLD_FORMAT_START = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
"""The first bytes of files that torch.save wrote before torch 1.6; later ones are zip files."""

Answer = TypeVar('Answer')


def in_time(function: Callable[[], Answer]) -> Answer:
    """Call a function with a time limit and return what it returns.

    The time limits of network libraries start again with every byte, so the call runs in a thread,
    which is abandoned when its time is over.

    Raises:
        TimeoutError: it takes longer than `ANSWER_SECONDS`.
    """
    future: Future[Answer] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    thread = Thread(target=call, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if not future.done():
        raise TimeoutError(f'expected an answer within {ANSWER_SECONDS:g} seconds, got only a part')
    return future.result()


def download_once(
    url: str,
    path: Path,
    lock: Path,
    authorization: str | None = None,
    digest: str | None = None,
) -> None:
    """Download a checkpoint unless it exists; one process does so while the others wait.

    Args:
        url: where it is.
        path: file to write; its suffix tells the format. Folders are created.
        lock: file that is locked during the download.
        authorization: value of the HTTP header; it is not sent to servers that `url` redirects to.
        digest: hexadecimal SHA-256 of the file, if it is known.

    Raises:
        OSError: the server does not answer, sends anything but a whole checkpoint with that
            SHA-256, or exceeds one of this module's limits; no file is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=TOTAL_SECONDS):
            if not path.is_file():
                _download(url, path, authorization, digest)
    except Timeout as error:
        rule = f'expected other processes to download it within {TOTAL_SECONDS:g} seconds'
        raise OSError(f'{rule}, got {lock} locked for longer') from error


def _download(url: str, path: Path, authorization: str | None, digest: str | None) -> None:
    """Download a checkpoint, checking its size, format and digest; see `download_once`."""
    end = time.monotonic() + TOTAL_SECONDS
    request = Request(url, headers={'User-Agent': 'mmpola'})
    if authorization is not None:
        request.add_unredirected_header('Authorization', authorization)
    # A process that was killed may have left this file; it is overwritten.
    partial = path.with_name(f'{path.name}.part{path.suffix}')
    try:
        answer = in_time(lambda: urlopen(request, timeout=SILENT_SECONDS))
        with answer, partial.open('wb') as file:
            if answer.status != 200:
                raise OSError(f'the server answered {answer.status} {answer.reason}')
            total = None
            if answer.headers['Content-Length']:
                total = int(answer.headers['Content-Length'])
                _check_size(total)
            with tqdm.wrapattr(file, 'write', total=total, desc=path.name) as progress:
                size = 0
                while piece := answer.read1(1 << 20):  # read() would wait for the whole MiB
                    size += len(piece)
                    _check_size(size)
                    if time.monotonic() > end:
                        rule = f'expected the whole file within {TOTAL_SECONDS:g} seconds'
                        raise OSError(f'{rule}, got {size} of {total or "unknown"} bytes')
                    progress.write(piece)
        if total is not None and size != total:
            raise OSError(f'incomplete, got {size} of {total} bytes')
        if not is_checkpoint(partial):
            kind = answer.headers['Content-Encoding'] or answer.headers['Content-Type']
            raise OSError(f'got {size} bytes of {kind}, which are no checkpoint')
        if digest is not None and sha256(partial) != digest:
            raise OSError('the file has another SHA-256 than the hub gives; try again')
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise OSError(f'expected at most {MAX_BYTES} bytes, got {size} or more')


def is_checkpoint(path: Path) -> bool:
    """Whether a file looks like a whole file of torch.save or, by its suffix, of safetensors."""
    if path.suffix == '.safetensors':
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework='pt'):
                return True
        except SafetensorError:
            return False
    with path.open('rb') as file:
        start = file.read(len(OLD_FORMAT_START))
    return start == OLD_FORMAT_START or zipfile.is_zipfile(path)


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
