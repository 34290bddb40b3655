"""Checkpoints by name: a path, a URL, a file on the Hugging Face Hub or a model of mmpola, as a local file.

    checkpoints/pola_swin_t.pth  ~/weights.pth  file:///data/weights.pth    a local file
    https://HOST/PATH/weights.pth                                           downloaded into torch's hub folder
    hf://OWNER/REPOSITORY/FILE                                              downloaded into the Hugging Face cache
    mmpola://pola_swin_tiny                                                 the authors' released weights of that model

Every download shows a progress bar, happens once per machine however many processes ask for it, and is checked for its
length and, where the hub publishes one, its SHA-256. `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and `TORCH_HOME`
work as usual.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlparse
from urllib.request import Request, url2pathname, urlopen

import torch

from mmpola.checkpoint import CheckpointError

RELEASED = 'ZachMeng/PolaFormer'
"""The Hugging Face repository of the authors' released weights."""

LOCAL_FOLDER = Path('checkpoints')
"""Where `mmpola://MODEL` looks first, relative to the working directory: `MODEL.pth` or its short name."""

BY_NAME = 'released weights are downloaded by name, for example mmpola://pola_swin_tiny'

SCHEMES = ('file', 'http', 'https', 'hf', 'mmpola')
WEIGHT_SUFFIXES = ('.bin', '.pt', '.pth', '.safetensors')
SHORT_SIZES = {'tiny': 't', 'small': 's', 'medium': 'm', 'base': 'b', 'large': 'l'}
SIZE_NAMES = {**{size: (size, short) for size, short in SHORT_SIZES.items()}, 'large': ('large', 'l', 'b')}
"""What a file may call each size. The authors call their largest PVT `pvt_b`; they released no PVT named base."""

Found = TypeVar('Found')


def local_checkpoint(name: str | Path) -> Path:
    """Find a checkpoint, downloading it if it is neither here nor cached.

    Args:
        name: a path or one of the names in this module's docstring.

    Raises:
        FileNotFoundError: there is no such local file.
        CheckpointError: the scheme is unknown, the file cannot be downloaded or is incomplete, or the released files
            do not name the model uniquely; the message says what to do.
    """
    scheme, separator, rest = str(name).partition('://')
    if not separator:
        return _existing(Path(name).expanduser(), str(name))
    if scheme not in SCHEMES:
        known = ', '.join(f'{known}://' for known in SCHEMES)
        raise CheckpointError(f'{name}: expected a path or one of {known}, got {scheme}://')
    if scheme == 'file':
        return _existing(Path(url2pathname(urlparse(str(name)).path)), str(name))
    if scheme == 'mmpola':
        return released_checkpoint(rest)
    return _from_hub(str(name)) if scheme == 'hf' else _from_url(str(name))


def released_checkpoint(model: str) -> Path:
    """The released weights of a model: a file in `checkpoints/`, else from the authors' repository.

    Args:
        model: a name of `mmpola.backbones.zoo.NAMED`, e.g. 'pola_swin_tiny'.

    Raises:
        CheckpointError: see `local_checkpoint`.
    """
    for stem in (model, short_name(model)):
        if (path := LOCAL_FOLDER / f'{stem}.pth').is_file():
            return path
    name = f'mmpola://{model}'
    files = _attempt(name, _listing, RELEASED)
    weights = [file for file in files if file.endswith(WEIGHT_SUFFIXES)]
    matches = [file for file in weights if matches_model(file, model)]
    if len(matches) != 1:
        found = f'{len(matches)} files match' if matches else 'no file matches'
        raise CheckpointError(
            f'{name}: {found} in {RELEASED}, which has {", ".join(matches or weights) or "no weights"}; name the file: '
            f'hf://{RELEASED}/FILE, or save it as {LOCAL_FOLDER / short_name(model)}.pth'
        )
    return _from_hub(f'hf://{RELEASED}/{matches[0]}', name)


def short_name(model: str) -> str:
    """'pola_swin_tiny' -> 'pola_swin_t', as configs call files in `checkpoints/`."""
    return '_'.join(SHORT_SIZES.get(part, part) for part in model.split('_'))


def matches_model(file: str, model: str) -> bool:
    """Whether a released file's path can only mean `model`, by family, size and image size."""
    text = file.lower().replace('++', 'pp')
    family, _, size = re.sub(r'_384$', '', model).rpartition('_')
    if ('384' in text) != model.endswith('_384'):
        return False
    named = {'pola_swin': 'swin', 'pola_pvt_v2': 'pvtv2', 'pola_pvt': 'pvt', 'pola_deit': 'deit'}.get(family, 'pp')
    text = re.sub(r'pvt[\W_]*v2', 'pvtv2', text)
    families = [word for word in ('swin', 'pvtv2', 'deit') if word in text]
    families += ['pvt'] if 'pvt' in text.replace('pvtv2', '') else []
    if families != ([] if named == 'pp' else [named]):
        return False
    # A size follows its family ('swin_t', 'swint') or stands alone between separators ('tiny', 'b2').
    sizes = '|'.join(SIZE_NAMES.get(size, (size,)))
    pattern = rf'(?<![a-z0-9])(?:{sizes})(?![a-z0-9])'
    return re.search(rf'{pattern}|{named}[\W_]*(?:{sizes})(?![a-z0-9])', text) is not None


def _existing(path: Path, name: str) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f'{name}: no such checkpoint file; {BY_NAME}')
    return path


def _from_hub(name: str, asked: str | None = None) -> Path:
    """The cached file of 'hf://OWNER/REPOSITORY/FILE'; `asked` is what the user wrote, for messages."""
    asked = asked or name
    owner, repository, file = (*name.removeprefix('hf://').split('/', 2), '', '')[:3]
    if not (owner and repository and file):
        raise CheckpointError(f'{name}: expected hf://OWNER/REPOSITORY/FILE')
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(f'{owner}/{repository}', file)
    path = Path(_attempt(asked, hf_hub_download, f'{owner}/{repository}', file))
    digest = path.resolve().name  # the cache calls a large file by the SHA-256 that the hub gives
    if not isinstance(cached, str) and re.fullmatch(r'[0-9a-f]{64}', digest) and sha256(path) != digest:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise CheckpointError(f'{asked}: the downloaded file has another SHA-256 than the hub gives; try again')
    return path


def _from_url(url: str) -> Path:
    """The cached file of an http(s) URL in torch's hub folder, under a name that tells equal file names apart."""
    from filelock import FileLock

    file = Path(unquote(urlparse(url).path)).name
    folder = Path(torch.hub.get_dir()) / 'checkpoints'
    path = folder / f'{Path(file).stem}-{hashlib.sha256(url.encode()).hexdigest()[:8]}{Path(file).suffix}'
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f'{path}.lock'):  # of several processes one downloads, the others find its file
        if not path.is_file():
            _attempt(url, _download, url, path)
    return path


def _download(url: str, path: Path) -> None:
    """Download a whole file or none: torch's function does not notice a connection that ends early."""
    partial = path.with_name(f'{path.name}.part')
    try:
        torch.hub.download_url_to_file(url, str(partial))
        length, size = _announced_length(url), partial.stat().st_size
        if length not in (None, size):
            raise OSError(f'incomplete, got {size} of {length} bytes')
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _announced_length(url: str) -> int | None:
    """Bytes of a URL's content; None where the server does not say."""
    try:
        with urlopen(Request(url, method='HEAD'), timeout=30) as answer:
            return int(answer.headers['Content-Length'])
    except (OSError, TypeError, ValueError):
        return None


def _listing(repository: str) -> list[str]:
    from huggingface_hub import HfApi

    return HfApi().list_repo_files(repository)


def _attempt(name: str, function: Callable[..., Found], *arguments: object) -> Found:
    """function(*arguments), with every failure of network and hub as one error that says what to do."""
    try:
        return function(*arguments)
    except Exception as error:  # HTTP libraries and the hub raise kinds of their own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f'{name}: cannot be downloaded ({reason}); where the files are is in docs/weights.md: download the file on '
            'another machine and give its path'
        ) from error


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
