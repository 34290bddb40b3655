"""Checkpoints by name: a path, a URL, a file on the Hugging Face Hub or a model of mmpola, as a local file.

    checkpoints/pola_swin_t.pth  ~/weights.pth  file:///data/weights.pth    a local file
    https://HOST/PATH/weights.pth                                           downloaded into torch's hub folder
    hf://OWNER/REPOSITORY/FILE                                              downloaded into the Hugging Face cache
    mmpola://pola_swin_tiny                                                 the authors' released weights of that model

Every download shows a progress bar, happens once per machine however many processes ask for it, and is checked for its
length, its format and, where the hub publishes one, its SHA-256; what fails a check is not kept. `HF_ENDPOINT`,
`HF_HUB_CACHE`, `HF_HUB_OFFLINE` and `TORCH_HOME` work as usual.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlparse
from urllib.request import Request, url2pathname, urlopen

import torch
from tqdm import tqdm

from mmpola.checkpoint import CheckpointError
from mmpola.messages import first_line, printable, suggestion

RELEASED = 'ZachMeng/PolaFormer'
"""The Hugging Face repository of the authors' released weights."""

LOCAL_FOLDER = Path('checkpoints')
"""Where `mmpola://MODEL` looks first, relative to the working directory: `MODEL.pth` or its short name."""

BY_NAME = 'released weights are downloaded by name, for example mmpola://pola_swin_tiny'

SCHEMES = ('file', 'http', 'https', 'hf', 'mmpola')
WEIGHT_SUFFIXES = ('.bin', '.pt', '.pth', '.safetensors')
TIMEOUT = 30.0
"""Seconds after which a server that sends nothing is given up."""

OLD_FORMAT = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
"""How files of torch.save began before torch 1.6; later ones are zip files."""

B_SIZES = tuple(f'b{number}' for number in range(6))
FAMILIES = {
    'pola_pvt': ('pvt', ('tiny', 'small', 'medium', 'large')),
    'pola_pvt_v2': ('pvtv2', B_SIZES),
    'pola_swin': ('swin', ('tiny', 'small', 'base', 'small_384', 'base_384')),
    'pola_deit': ('deit', ('tiny', 'small', 'base')),
    'polaformer_pp': ('pp', B_SIZES),
}
"""Family -> (how a released file calls it, sizes). Together they are the names of `mmpola.backbones.zoo.NAMED`."""

SHORT_SIZES = {'tiny': 't', 'small': 's', 'medium': 'm', 'base': 'b', 'large': 'l'}
SIZE_NAMES = {**{size: (size, short) for size, short in SHORT_SIZES.items()}, 'large': ('large', 'l', 'b')}
"""What a file may call each size. The authors call their largest PVT `pvt_b`; they released no PVT named base."""

Found = TypeVar('Found')


def resolve_checkpoint(name: str | Path) -> Path:
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
        return _existing(os.path.expanduser(name), name)
    if scheme == 'file':
        return _existing(url2pathname(urlparse(str(name)).path), name)
    if scheme == 'mmpola':
        return released_checkpoint(rest)
    if scheme == 'hf':
        return _from_hub(str(name))
    if scheme in SCHEMES:
        return _attempt(str(name), _from_url, str(name))
    known = ', '.join(f'{known}://' for known in SCHEMES)
    raise CheckpointError(f'{name}: expected a path or one of {known}, got {scheme}://')


def released_checkpoint(model: str) -> Path:
    """The released weights of a model: a file in `checkpoints/`, else from the authors' repository.

    Args:
        model: a name of `mmpola.backbones.zoo.NAMED`, e.g. 'pola_swin_tiny'.

    Raises:
        CheckpointError: there is no such model, or see `resolve_checkpoint`.
    """
    name = f'mmpola://{model}'
    known = [f'mmpola://{family}_{size}' for family, (_, sizes) in FAMILIES.items() for size in sizes]
    if name not in known:
        meant = suggestion(name, known, 0.8)
        rule = f'expected the name of a model, such as {known[0]}'
        raise CheckpointError(f'{printable(name)}: {rule}{meant}')
    for stem in (model, short_name(model)):
        if (path := LOCAL_FOLDER / f'{stem}.pth').is_file():
            return path
    weights = [file for file in _attempt(name, _listing, RELEASED) if file.endswith(WEIGHT_SUFFIXES)]
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
    named = FAMILIES[family][0]
    text = re.sub(r'pvt[\W_]*v2', 'pvtv2', text)
    families = [word for word in ('swin', 'pvtv2', 'deit') if word in text]
    families += ['pvt'] if 'pvt' in text.replace('pvtv2', '') else []
    if families != ([] if named == 'pp' else [named]):
        return False
    # A size follows its family ('swin_t', 'swint') or stands alone between separators ('tiny', 'b2').
    sizes = '|'.join(SIZE_NAMES.get(size, (size,)))
    pattern = rf'(?<![a-z0-9])(?:{sizes})(?![a-z0-9])'
    return re.search(rf'{pattern}|{named}[\W_]*(?:{sizes})(?![a-z0-9])', text) is not None


def _existing(path: str, name: str | Path) -> Path:
    if not os.path.isfile(path):  # unlike Path.is_file, this is False for a name that is too long
        raise FileNotFoundError(f'{printable(name)}: no such checkpoint file; {BY_NAME}')
    return Path(path)


def _from_hub(name: str, asked: str | None = None) -> Path:
    """The cached file of 'hf://OWNER/REPOSITORY/FILE'; `asked` is what the user wrote, for messages."""
    asked = asked or name
    parts = name.removeprefix('hf://').split('/')
    if len(parts) < 3 or not {'', '.', '..'}.isdisjoint(parts):
        raise CheckpointError(f'{name}: expected hf://OWNER/REPOSITORY/FILE')
    repository, file = '/'.join(parts[:2]), '/'.join(parts[2:])
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    cached = _attempt(asked, try_to_load_from_cache, repository, file)
    if not isinstance(cached, str):  # hf_hub_download alone asks a silent server for six minutes
        _attempt(asked, lambda: get_hf_file_metadata(hf_hub_url(repository, file), timeout=TIMEOUT))
    path = Path(_attempt(asked, hf_hub_download, repository, file))
    if isinstance(cached, str):
        return path
    digest = path.resolve().name  # the cache calls a large file by the SHA-256 that the hub gives
    altered = re.fullmatch(r'[0-9a-f]{64}', digest) and sha256(path) != digest
    if altered or not is_checkpoint(path):
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        problem = 'has another SHA-256 than the hub gives; try again' if altered else 'is no checkpoint'
        raise CheckpointError(f'{asked}: the downloaded file {problem}')
    return path


def _from_url(url: str) -> Path:
    """The cached file of an http(s) URL in torch's hub folder, under a name that tells equal file names apart."""
    from filelock import FileLock

    file = Path(re.sub(r'[^A-Za-z0-9_ .+-]', '_', unquote(urlparse(url).path).rpartition('/')[2]))
    folder = Path(torch.hub.get_dir()) / 'checkpoints'
    path = folder / f'{file.stem[:100]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}{file.suffix[:20]}'
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f'{path}.lock'):  # of several processes one downloads, the others find its file
        if not path.is_file():
            _download(url, path)
    return path


def _download(url: str, path: Path) -> None:
    """Download a whole checkpoint or nothing.

    Raises:
        OSError: the server does not answer, sends less than it announced, or sends something else.
    """
    partial = path.with_name(f'{path.name}.part{path.suffix}')  # overwrites what a process that was killed left
    request = Request(url, headers={'User-Agent': 'mmpola'})
    try:
        with urlopen(request, timeout=TIMEOUT) as answer, partial.open('wb') as file:
            announced = answer.headers['Content-Length']
            if answer.status != 200:
                raise OSError(f'the server answered {answer.status} {answer.reason}')
            total = int(announced) if announced else None
            with tqdm.wrapattr(file, 'write', total=total, desc=path.name) as progress:
                while piece := answer.read(1 << 20):
                    progress.write(piece)
        size = partial.stat().st_size
        if total not in (None, size):
            raise OSError(f'incomplete, got {size} of {total} bytes')
        if not is_checkpoint(partial):
            kind = answer.headers['Content-Encoding'] or answer.headers['Content-Type']
            raise OSError(f'got {size} bytes of {kind}, which are no checkpoint')
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def remove_and_repeat(path: str | Path) -> str:
    """The end of a message about a broken file: which one to remove if it was downloaded, '' for a file of the user."""
    from huggingface_hub.constants import HF_HUB_CACHE

    real = Path(path).resolve()  # the hub's cache names a file by a link to it; without the file, it downloads again
    downloaded = any(real.is_relative_to(Path(folder).resolve()) for folder in (torch.hub.get_dir(), HF_HUB_CACHE))
    return f'; remove {real} to download it again' if downloaded else ''


def is_checkpoint(path: Path) -> bool:
    """Whether a file is a whole zip file, as torch.save writes it, or safetensors, or begins like the older format."""
    if path.suffix == '.safetensors':
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework='pt'):
                return True
        except SafetensorError:
            return False
    with path.open('rb') as file:
        return file.read(len(OLD_FORMAT)) == OLD_FORMAT or zipfile.is_zipfile(path)


def _listing(repository: str) -> list[str]:
    from huggingface_hub import HfApi

    return [file.rfilename for file in HfApi().model_info(repository, timeout=TIMEOUT).siblings or ()]


def _attempt(name: str, function: Callable[..., Found], *arguments: object) -> Found:
    """function(*arguments), with every failure of network and hub as one error that says what to do."""
    try:
        return function(*arguments)
    except CheckpointError:
        raise
    except Exception as error:  # HTTP libraries and the hub raise kinds of their own
        raise CheckpointError(
            f'{name}: cannot be downloaded ({first_line(error)}); download the file on another machine and give its '
            'path, as docs/weights.md describes'
        ) from error


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
