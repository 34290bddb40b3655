"""Checkpoints by name: a path, a URL, a file on the Hugging Face Hub or a model of mmpola, as a local file.

    checkpoints/pola_swin_t.pth  ~/weights.pth  file:///data/weights.pth    a local file
    https://HOST/PATH/weights.pth                                           downloaded into torch's hub folder
    hf://OWNER/REPOSITORY/FILE                                              downloaded into the Hugging Face cache
    mmpola://pola_swin_tiny                                                 the authors' weights of that model

A download shows a progress bar, happens once per machine however many processes ask for it, keeps
to the limits of `mmpola.checkpoint.download`, and is checked for its length, its format and, where
the hub publishes one, its SHA-256; what fails a check is not kept. `HF_ENDPOINT`, `HF_HUB_CACHE`,
`HF_HUB_OFFLINE` and `TORCH_HOME` work as usual.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlparse
from urllib.request import url2pathname

import torch

from mmpola.checkpoint import CheckpointError, download
from mmpola.checkpoint.write import write_atomically
from mmpola.messages import first_line, listed, printable, suggestion

RELEASED = 'ZachMeng/PolaFormer'
"""The Hugging Face repository of the authors' weights."""

RELEASED_PAGE = f'https://huggingface.co/{RELEASED}/tree/main'

PAGE_PP = 'https://pan.baidu.com/s/1tjG-Qq2zFwN_HZswAzxarQ?pwd=atba (code atba)'
"""Where the authors of PolaFormer++ publish its weights; they cannot be downloaded by a program."""

LOCAL_FOLDER = Path('checkpoints')
"""Where `mmpola://MODEL` looks first, relative to the working directory: `MODEL.pth` or its short name."""

BY_NAME = 'published weights are downloaded by name, for example mmpola://pola_swin_tiny'

SCHEMES = ('file', 'http', 'https', 'hf', 'mmpola')
WEIGHT_SUFFIXES = ('.bin', '.pt', '.pth', '.safetensors')

B_SIZES = tuple(f'b{number}' for number in range(6))
FAMILIES = {
    'pola_pvt': ('tiny', 'small', 'medium', 'large'),
    'pola_pvt_v2': B_SIZES,
    'pola_swin': ('tiny', 'small', 'base', 'small_384', 'base_384'),
    'pola_deit': ('tiny', 'small', 'base'),
    'polaformer_pp': B_SIZES,
}
"""Family -> sizes. Together they are the names of `mmpola.backbones.zoo.NAMED`."""

PUBLISHED = (
    'pola_pvt_tiny',
    'pola_pvt_small',
    'pola_swin_tiny',
    'pola_swin_small',
    'pola_swin_base',
)
"""The models with a file in `RELEASED`, all for images of 224 x 224."""

SHORT_SIZES = {'tiny': 't', 'small': 's', 'medium': 'm', 'base': 'b', 'large': 'l'}

Found = TypeVar('Found')


def resolve_checkpoint(name: str | Path) -> Path:
    """Find a checkpoint, downloading it if it is neither here nor cached.

    Args:
        name: a path or one of the names in this module's docstring.

    Raises:
        FileNotFoundError: there is no such local file.
        CheckpointError: the scheme is unknown, the file cannot be downloaded or is incomplete, or
            the released files do not name the model uniquely; the message says what to do.
    """
    scheme, separator, rest = str(name).partition('://')
    if not separator:
        return _existing(os.path.expanduser(name), name)
    if scheme == 'file':
        return _existing(url2pathname(urlparse(str(name)).path), name)
    if scheme == 'mmpola':
        return released_checkpoint(rest)
    if scheme == 'hf':
        return _from_hub(str(name))
    if scheme in SCHEMES:
        url = str(name)
        return _attempt(url, url, 'give its path', lambda: _from_url(url))
    schemes = ', '.join(f'{known}://' for known in SCHEMES)
    got = printable(f'{scheme}://')
    raise CheckpointError(f'{printable(name)}: expected a path or one of {schemes}, got {got}')


def released_checkpoint(model: str) -> Path:
    """Find the weights of a model: a file in `checkpoints/`, else in the authors' repository.

    Args:
        model: a name of `mmpola.backbones.zoo.NAMED`, e.g. 'pola_swin_tiny'. Only the files of
            `PUBLISHED` are downloaded.

    Raises:
        CheckpointError: there is no such model, or no file in `checkpoints/` and none to download;
            see also `resolve_checkpoint`.
    """
    name = f'mmpola://{model}'
    known = [f'mmpola://{family}_{size}' for family, sizes in FAMILIES.items() for size in sizes]
    if name not in known:
        meant = suggestion(name, known, 0.8)
        rule = f'expected the name of a model, such as {known[0]}'
        raise CheckpointError(f'{printable(name)}: {rule}{meant}')
    for stem in (model, short_name(model)):
        path = LOCAL_FOLDER / f'{stem}.pth'
        if path.is_file():
            return path
    local = LOCAL_FOLDER / f'{short_name(model)}.pth'
    if model.startswith('polaformer_pp_'):
        remedy = f'the authors publish it at {PAGE_PP}; download it there by hand and save it so'
        raise CheckpointError(f'{name}: expected the file {local}, got none; {remedy}')
    if model not in PUBLISHED:
        reason = 'the authors published no weights of this model; save your own file so'
        raise CheckpointError(f'{name}: expected the file {local}, got none; {reason}')
    remedy = f'save it as {local}'
    files = _attempt(name, RELEASED_PAGE, remedy, _listing)
    weights = [file for file in files if file.endswith(WEIGHT_SUFFIXES)]
    matches = [file for file in weights if matches_model(file, model)]
    if len(matches) != 1:
        rule = f'expected one file of this model in {RELEASED}'
        got = listed(matches or weights, None) or 'no weights'
        by_name = f'name the file: hf://{RELEASED}/FILE, or {remedy}'
        raise CheckpointError(f'{name}: {rule}, got {got}; {by_name}')
    return _from_hub(f'hf://{RELEASED}/{matches[0]}', name, remedy)


def short_name(model: str) -> str:
    """'pola_swin_tiny' -> 'pola_swin_t', as configs call files in `checkpoints/`."""
    return '_'.join(SHORT_SIZES.get(part, part) for part in model.split('_'))


def matches_model(file: str, model: str) -> bool:
    """Return whether a path in `RELEASED` can only mean that model of `PUBLISHED`."""
    text = file.lower()
    _, family, size = model.split('_')
    others = {'swin', 'pvt', 'v2', 'deit', '384'} - {family}
    if family not in text or any(other in text for other in others):
        return False
    # A size stands between separators ('tiny') or follows its family ('swin_t', 'swint').
    sizes = rf'(?:{size}|{SHORT_SIZES[size]})(?![a-z0-9])'
    return re.search(rf'((?<![a-z0-9])|{family}){sizes}', text) is not None


def _existing(path: str, name: str | Path) -> Path:
    if not os.path.isfile(path):  # unlike Path.is_file, this is False for a name that is too long
        raise FileNotFoundError(f'{printable(name)}: no such checkpoint file; {BY_NAME}')
    return Path(path)


def _from_hub(name: str, asked: str | None = None, remedy: str = 'give its path') -> Path:
    """Return the cached file of 'hf://OWNER/REPOSITORY/FILE'.

    Files are written into the hub's cache as `huggingface_hub` writes them where it can make no
    links: by commit and name. What the server says becomes no path, but for the commit.

    Args:
        name: the file.
        asked: what the user wrote, for messages.
        remedy: what to do with a file that the user downloads, for messages.
    """
    asked = asked or name
    parts = name.removeprefix('hf://').split('/')
    if len(parts) < 3 or not {'', '.', '..'}.isdisjoint(parts):
        raise CheckpointError(f'{printable(name)}: expected hf://OWNER/REPOSITORY/FILE')
    repository = '/'.join(parts[:2])
    file = '/'.join(parts[2:])
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import build_hf_headers

    def from_cache_or_hub() -> Path:
        cached = try_to_load_from_cache(repository, file)
        if isinstance(cached, str):
            return Path(cached)
        url = hf_hub_url(repository, file)
        seconds = download.SILENT_SECONDS
        answer = download.in_time(lambda: get_hf_file_metadata(url, timeout=seconds))
        etag = answer.etag or ''
        commit = answer.commit_hash or ''
        if not re.fullmatch(r'[\w.+-]+', etag) or not re.fullmatch(r'[0-9a-f]{40}', commit):
            rule = 'expected an ETag without slashes and the hash of a commit from the hub'
            raise OSError(f'{rule}, got {etag!r} and {commit!r}')
        folder = repo_folder_name(repo_id=repository, repo_type='model')
        cache = Path(constants.HF_HUB_CACHE)
        path = cache / folder / 'snapshots' / commit / file
        lock = cache / '.locks' / folder / f'{hashlib.sha256(url.encode()).hexdigest()}.lock'
        digest = etag if re.fullmatch(r'[0-9a-f]{64}', etag) else None
        authorization = build_hf_headers().get('authorization')
        download.download_once(url, path, lock, authorization, digest)
        reference = cache / folder / 'refs' / constants.DEFAULT_REVISION
        reference.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(reference, commit.encode())
        return path

    try:
        url = hf_hub_url(repository, file)
    except ValueError as error:
        raise CheckpointError(f'{printable(asked)}: {first_line(error)}') from error
    return _attempt(asked, url, remedy, from_cache_or_hub)


def _from_url(url: str) -> Path:
    """Return the file of an http(s) URL in torch's hub folder; equal file names are told apart."""
    file = Path(re.sub(r'[^A-Za-z0-9_ .+-]', '_', unquote(urlparse(url).path).rpartition('/')[2]))
    folder = Path(torch.hub.get_dir()) / 'checkpoints'
    digest = hashlib.sha256(url.encode()).hexdigest()
    path = folder / f'{file.stem[:100]}-{digest[:8]}{file.suffix[:20]}'
    download.download_once(url, path, Path(f'{path}.lock'))
    return path


def remove_and_repeat(path: str | Path) -> str:
    """The end of a message about a broken file: which one to remove if it was downloaded, '' for a file of the user."""
    from huggingface_hub.constants import HF_HUB_CACHE

    real = (
        Path(path).resolve()
    )  # the hub's cache names a file by a link to it; without the file, it downloads again
    downloaded = any(
        real.is_relative_to(Path(folder).resolve())
        for folder in (torch.hub.get_dir(), HF_HUB_CACHE)
    )
    return f'; remove {real} to download it again' if downloaded else ''


def _listing() -> list[str]:
    from huggingface_hub import HfApi

    seconds = download.SILENT_SECONDS
    answer = download.in_time(lambda: HfApi().model_info(RELEASED, timeout=seconds))
    return [sibling.rfilename for sibling in answer.siblings or ()]


def _attempt(name: str, url: str, remedy: str, function: Callable[[], Found]) -> Found:
    """Call a function; turn any failure of the network into one line that says what to do.

    Args:
        name: what the user wrote.
        url: where the file is.
        remedy: what to do with the file once the user has downloaded it elsewhere.
        function: returns what is asked for.
    """
    try:
        return function()
    except Exception as error:  # HTTP libraries and the hub raise kinds of their own
        reason = f'cannot be downloaded ({first_line(error)})'
        elsewhere = f'download {printable(url)} on another machine and {remedy}'
        raise CheckpointError(f'{printable(name)}: {reason}; {elsewhere}') from error
