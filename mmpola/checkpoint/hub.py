"""Find a checkpoint by name: a path, a URL, a file on the Hugging Face Hub, or a model.

    checkpoints/pola_swin_t.pth  ~/weights.pth           a local file
    file:///data/weights.pth                             a local file
    https://HOST/PATH/weights.pth                        downloaded into torch's hub folder
    hf://OWNER/REPOSITORY/FILE                           downloaded into the Hugging Face cache
    mmpola://pola_swin_tiny                              the authors' weights of that model

A download shows a progress bar, happens once per machine however many processes ask for it, and
keeps to the limits of `mmpola.checkpoint.download`. Its length, its format and, if the hub
publishes one, its SHA-256 are checked; a file that fails is removed. `HF_ENDPOINT`, `HF_HUB_CACHE`,
`HF_HUB_OFFLINE` and `TORCH_HOME` work as usual.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlparse
from urllib.request import url2pathname

import torch

from mmpola.checkpoint import CheckpointError, download
from mmpola.checkpoint.write import write_atomically
from mmpola.messages import first_line, listed, printable, suggestion
from mmpola.zoo import NAMED

RELEASED_REPOSITORY = 'ZachMeng/PolaFormer'
"""The Hugging Face repository of the authors' weights."""

RELEASED_PAGE = f'https://huggingface.co/{RELEASED_REPOSITORY}/tree/main'

POLAFORMER_PP_PAGE = 'https://pan.baidu.com/s/1tjG-Qq2zFwN_HZswAzxarQ?pwd=atba (code atba)'
"""Where the authors of PolaFormer++ publish its weights; no program can download them."""

LOCAL_FOLDER = Path('checkpoints')
"""Where `mmpola://MODEL` is looked for first, relative to the working directory."""

SCHEMES = ('file', 'http', 'https', 'hf', 'mmpola')
WEIGHT_SUFFIXES = ('.bin', '.pt', '.pth', '.safetensors')

PUBLISHED_MODELS = (
    'pola_pvt_tiny',
    'pola_pvt_small',
    'pola_swin_tiny',
    'pola_swin_small',
    'pola_swin_base',
)
"""The models with a file in `RELEASED_REPOSITORY`, all for images of 224 x 224."""

SIZE_LETTERS = {'tiny': 't', 'small': 's', 'medium': 'm', 'base': 'b', 'large': 'l'}


def resolve_checkpoint(name: str | Path) -> Path:
    """Find a checkpoint, downloading it if it is neither here nor cached.

    Args:
        name: a path or one of the names in this module's docstring.

    Raises:
        FileNotFoundError: there is no such local file.
        CheckpointError: the scheme is unknown, the file cannot be downloaded or is incomplete, or
            the released files do not name the model uniquely; the message says what to do.
    """
    text = str(name)
    scheme, separator, rest = text.partition('://')
    if not separator:
        return _local_file(os.path.expanduser(text), text)
    if scheme == 'file':
        return _local_file(url2pathname(urlparse(text).path), text)
    if scheme == 'mmpola':
        return released_checkpoint(rest)
    if scheme == 'hf':
        return _file_on_the_hub(text, asked=text, remedy='give its path')
    if scheme in ('http', 'https'):
        return _file_of_a_url(text)
    schemes = ', '.join(f'{known}://' for known in SCHEMES)
    got = printable(f'{scheme}://')
    raise CheckpointError(f'{printable(text)}: expected a path or one of {schemes}, got {got}')


def released_checkpoint(model: str) -> Path:
    """Find the weights of a model: a file in `checkpoints/`, else in the authors' repository.

    Args:
        model: a name of `mmpola.zoo.NAMED`, e.g. 'pola_swin_tiny'. Only the files of
            `PUBLISHED_MODELS` are downloaded.

    Raises:
        CheckpointError: there is no such model, or no file in `checkpoints/` and none to download;
            see also `resolve_checkpoint`.
    """
    name = f'mmpola://{model}'
    known = [f'mmpola://{named}' for named in NAMED]
    if name not in known:
        rule = f'expected the name of a model, such as {known[0]}'
        meant = suggestion(name, known, similarity=0.8)
        raise CheckpointError(f'{printable(name)}: {rule}{meant}')

    local = LOCAL_FOLDER / f'{short_name(model)}.pth'
    for path in (LOCAL_FOLDER / f'{model}.pth', local):
        if path.is_file():
            return path
    if model.startswith('polaformer_pp_'):
        source = f'the authors publish it at {POLAFORMER_PP_PAGE}; download it there by hand'
        raise CheckpointError(
            f'{name}: expected the file {local}, got none; {source} and save it so'
        )
    if model not in PUBLISHED_MODELS:
        reason = 'the authors published no weights of this model; save your own file so'
        raise CheckpointError(f'{name}: expected the file {local}, got none; {reason}')

    remedy = f'save it as {local}'
    with _network_errors(name, RELEASED_PAGE, remedy):
        from huggingface_hub import HfApi

        seconds = download.SILENT_SECONDS
        info = download.in_time(lambda: HfApi().model_info(RELEASED_REPOSITORY, timeout=seconds))
        files = [sibling.rfilename for sibling in info.siblings or ()]
    weights = [file for file in files if file.endswith(WEIGHT_SUFFIXES)]
    matches = [file for file in weights if matches_model(file, model)]
    if len(matches) != 1:
        rule = f'expected one file of this model in {RELEASED_REPOSITORY}'
        got = listed(matches or weights, None) or 'no weights'
        advice = f'name the file: hf://{RELEASED_REPOSITORY}/FILE, or {remedy}'
        raise CheckpointError(f'{name}: {rule}, got {got}; {advice}')
    return _file_on_the_hub(f'hf://{RELEASED_REPOSITORY}/{matches[0]}', asked=name, remedy=remedy)


def short_name(model: str) -> str:
    """Return the name of a model's file in `checkpoints/`: 'pola_swin_tiny' -> 'pola_swin_t'."""
    return '_'.join(SIZE_LETTERS.get(part, part) for part in model.split('_'))


def matches_model(file: str, model: str) -> bool:
    """Whether a path in `RELEASED_REPOSITORY` can only mean that model of `PUBLISHED_MODELS`."""
    text = file.lower()
    _, family, size = model.split('_')
    other_families = {'swin', 'pvt', 'v2', 'deit', '384'} - {family}
    if family not in text or any(other in text for other in other_families):
        return False
    # A size stands between separators ('tiny') or follows its family ('swin_t', 'swint').
    size_pattern = rf'(?:{size}|{SIZE_LETTERS[size]})(?![a-z0-9])'
    return re.search(rf'((?<![a-z0-9])|{family}){size_pattern}', text) is not None


def _local_file(path: str, name: str) -> Path:
    if not os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
        advice = 'published weights are downloaded by name, for example mmpola://pola_swin_tiny'
        raise FileNotFoundError(f'{printable(name)}: no such checkpoint file; {advice}')
    return Path(path)


def _file_of_a_url(url: str) -> Path:
    """Return the file of an http(s) URL in torch's hub folder.

    A digest of the URL in its name tells files of the same name apart.
    """
    last_part = unquote(urlparse(url).path).rpartition('/')[2]
    file = Path(re.sub(r'[^A-Za-z0-9_ .+-]', '_', last_part))
    url_digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    with _network_errors(url, url, 'give its path'):
        folder = Path(torch.hub.get_dir()) / 'checkpoints'
        path = folder / f'{file.stem[:100]}-{url_digest}{file.suffix[:20]}'
        download.download_once(url, path, Path(f'{path}.lock'))
    return path


def _file_on_the_hub(name: str, asked: str, remedy: str) -> Path:
    """Return the cached file of 'hf://OWNER/REPOSITORY/FILE'.

    Files are written into the hub's cache by commit and name, as `huggingface_hub` does on systems
    without links. Only the commit of the server's answer becomes part of a path.

    Args:
        name: the file.
        asked: what the user wrote, for messages.
        remedy: what to do with the file once the user has downloaded it elsewhere, for messages.
    """
    parts = name.removeprefix('hf://').split('/')
    if len(parts) < 3 or not {'', '.', '..'}.isdisjoint(parts):
        raise CheckpointError(f'{printable(name)}: expected hf://OWNER/REPOSITORY/FILE')
    repository = '/'.join(parts[:2])
    file = '/'.join(parts[2:])

    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import build_hf_headers

    try:
        url = hf_hub_url(repository, file)
    except ValueError as error:
        raise CheckpointError(f'{printable(asked)}: {first_line(error)}') from error
    with _network_errors(asked, url, remedy):
        cached = try_to_load_from_cache(repository, file)
        if isinstance(cached, str):
            return Path(cached)

        seconds = download.SILENT_SECONDS
        metadata = download.in_time(lambda: get_hf_file_metadata(url, timeout=seconds))
        etag = metadata.etag or ''
        commit = metadata.commit_hash or ''
        if not re.fullmatch(r'[\w.+-]+', etag) or not re.fullmatch(r'[0-9a-f]{40}', commit):
            rule = 'expected an ETag without slashes and the hash of a commit from the hub'
            raise OSError(f'{rule}, got {etag!r} and {commit!r}')
        digest = None
        if re.fullmatch(r'[0-9a-f]{64}', etag):  # the ETag of a large file is its SHA-256
            digest = etag

        cache = Path(constants.HF_HUB_CACHE)
        folder = repo_folder_name(repo_id=repository, repo_type='model')
        path = cache / folder / 'snapshots' / commit / file
        lock = cache / '.locks' / folder / f'{hashlib.sha256(url.encode()).hexdigest()}.lock'
        authorization = build_hf_headers().get('authorization')
        download.download_once(url, path, lock, authorization, digest)

        reference = cache / folder / 'refs' / constants.DEFAULT_REVISION
        reference.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(reference, commit.encode())
        return path


@contextmanager
def _network_errors(name: str, url: str, remedy: str) -> Iterator[None]:
    """Turn any failure of the network into a CheckpointError of one line that says what to do.

    Args:
        name: what the user wrote.
        url: where the file is.
        remedy: what to do with the file once the user has downloaded it elsewhere.
    """
    try:
        yield
    except Exception as error:  # HTTP libraries and the hub raise kinds of their own
        reason = f'cannot be downloaded ({first_line(error)})'
        advice = f'download {printable(url)} on another machine and {remedy}'
        raise CheckpointError(f'{printable(name)}: {reason}; {advice}') from error


def download_again_advice(path: str | Path) -> str:
    """Return the end of a message about a broken file that was downloaded; '' for any other."""
    from huggingface_hub.constants import HF_HUB_CACHE

    # A name in the hub's cache may be a link; without the file that it leads to, the hub downloads
    # again.
    real = Path(path).resolve()
    for folder in (torch.hub.get_dir(), HF_HUB_CACHE):
        if real.is_relative_to(Path(folder).resolve()):
            return f'; remove {real} to download it again'
    return ''
