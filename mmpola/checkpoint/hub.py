"""Find a checkpoint by name: a path, a URL, a file on the Hugging Face Hub, or a model.

    checkpoints/pola_swin_t.pth  ~/weights.pth           a local file
    https://HOST/PATH/weights.pth                        downloaded into torch's hub folder
    hf://OWNER/REPOSITORY/FILE                           downloaded into the Hugging Face cache
    mmpola://pola_swin_nano                              our weights, which come with mmpola
    mmpola://faster_rcnn_pola_swin_small                 a detector's, which come with mmpola too
    mmpola://pola_swin_tiny                              the authors' weights of that model

A file is downloaded once per machine, with the caches and the settings of the libraries
(`TORCH_HOME`, `HF_HOME`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, …).
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mmpola.checkpoint import CheckpointError
from mmpola.files import write_atomically
from mmpola.messages import first_line, listed
from mmpola.zoo import EVERYDAY_DETECTOR, NAMED

RELEASED_REPOSITORY = 'ZachMeng/PolaFormer'
"""The Hugging Face repository of the authors' weights."""

ANY_RELEASED_FILE = f'hf://{RELEASED_REPOSITORY}/FILE'
"""How a user names one of its files."""

PUBLISHED_MODELS = (
    'pola_pvt_tiny',
    'pola_pvt_small',
    'pola_swin_tiny',
    'pola_swin_small',
    'pola_swin_base',
)
"""Models whose weights are in `RELEASED_REPOSITORY`, all for images of 224 x 224."""

SHIPPED_MODELS = ('pola_swin_nano', 'pola_pvt_nano')
"""Models whose weights come with mmpola, trained by us."""

MODELS_WITH_WEIGHTS = (*PUBLISHED_MODELS, *SHIPPED_MODELS)
"""Models whose weights `mmpola://NAME` finds without a file in `checkpoints/`."""

SHIPPED_FOLDER = Path(__file__).parents[1] / 'weights'
"""Folder of these weights: NAME.safetensors, in half precision."""

POLAFORMER_PP_PAGE = 'https://pan.baidu.com/s/1tjG-Qq2zFwN_HZswAzxarQ?pwd=atba (code atba)'
"""Where the authors of PolaFormer++ publish their weights; only a person can download them."""

LIST_OF_FILES = 'files_of_mmpola.txt'
"""Cached listing of the authors' Hub repository, one file per line."""

LOCAL_FOLDER = Path('checkpoints')
"""Where `mmpola://MODEL` is looked for first, relative to the working directory."""

SCHEMES = ('http', 'https', 'hf', 'mmpola')

SIZE_LETTERS = {'nano': 'n', 'tiny': 't', 'small': 's', 'medium': 'm', 'base': 'b', 'large': 'l'}

OLD_FORMAT_START = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
"""The first bytes of files that torch.save wrote before torch 1.6; later ones are zip files."""

REACHED_WITHIN = 10
"""Seconds within which the hub must answer the first request."""


class NoSuchFileError(CheckpointError, FileNotFoundError):
    """There is no local file of that name."""


class NotDownloadedError(CheckpointError):
    """A checkpoint would have to be downloaded, and the caller forbids it."""


def resolve_checkpoint(name: str | Path, *, download: bool = True) -> Path:
    """Find a checkpoint, downloading it if it is neither here nor cached.

    Args:
        name: a path or one of the names in this module's docstring.
        download: whether it may be downloaded.

    Raises:
        NoSuchFileError: there is no such local file.
        NotDownloadedError: it would have to be downloaded.
        CheckpointError: the name is unknown, or the file cannot be downloaded; the message says
            what to do.
    """
    text = str(name)
    scheme, separator, rest = text.partition('://')
    if not separator:
        path = os.path.expanduser(text)
        if not os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
            advice = 'published weights are downloaded by name, for example mmpola://pola_swin_tiny'
            raise NoSuchFileError(f'{name}: no such checkpoint file; {advice}')
        return Path(path)
    if scheme == 'mmpola':
        return released_checkpoint(rest, download=download)
    if scheme == 'hf':
        owner, _, rest = rest.partition('/')
        repository, _, file = rest.partition('/')
        if not file:
            raise CheckpointError(f'{name}: expected hf://OWNER/REPOSITORY/FILE')
        return _download_from_hub(text, f'{owner}/{repository}', file, 'give its path', download)
    if scheme in ('http', 'https'):
        return _download_url(text, download)
    schemes = ', '.join(f'{known}://' for known in SCHEMES)
    raise CheckpointError(f'{name}: expected a path or one of {schemes}, got {scheme}://')


def released_checkpoint(model: str, *, download: bool = True) -> Path:
    """Find the weights of a model: in `checkpoints/`, in mmpola, or in the authors' repository.

    Args:
        model: a name of `mmpola.zoo.NAMED`, e.g. 'pola_swin_tiny', or `EVERYDAY_DETECTOR`. Only
            weights of `PUBLISHED_MODELS` are downloaded.
        download: whether they may be downloaded.

    Raises:
        CheckpointError: there is no such model; its weights are neither in `checkpoints/` nor
            published; or the name of no file in the repository, or of several files, is like that
            of the model. See also `resolve_checkpoint`.
    """
    name = f'mmpola://{model}'
    known = [*NAMED, EVERYDAY_DETECTOR]
    if model not in known:
        raise CheckpointError(f'{name}: expected mmpola:// and one of {listed(known, None)}')
    local = LOCAL_FOLDER / f'{short_name(model)}.pth'
    for path in (LOCAL_FOLDER / f'{model}.pth', local):
        if path.is_file():
            return path
    if model in (*SHIPPED_MODELS, EVERYDAY_DETECTOR):
        return SHIPPED_FOLDER / f'{model}.safetensors'
    if model in PUBLISHED_MODELS:
        return _published_checkpoint(name, model, local, download)
    reason = 'the authors published no weights of this model; save your own file so'
    if model.startswith('polaformer_pp_'):
        reason = (
            f'the authors publish it on Baidu Pan only, {POLAFORMER_PP_PAGE}; see the README of '
            'their repository ZacharyMeng/PolaFormerPP, download it by hand and save it so'
        )
    raise CheckpointError(f'{name}: expected the file {local}, got none; {reason}')


def _published_checkpoint(name: str, model: str, local: Path, download: bool) -> Path:
    """Return the cached copy of the file in the authors' repository that is named like a model.

    The authors do not promise how they name their files, so the hub is asked once for a listing,
    and again if it no longer has the file. Without a network, a cached file with such a name is
    taken. Whether its tensors fit the model is checked when they are loaded.

    Args:
        name: what the user wrote.
        model: one of `PUBLISHED_MODELS`.
        local: where a user can save the file.
        download: whether the hub may be asked.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import RemoteEntryNotFoundError

    remedy = f'save the file of this model as {local}'
    cached = _cached_files(model)
    remembered = _remembered_files()
    files = list(cached) if remembered is None else remembered
    found = _files_named_like(model, files)
    is_known = remembered is not None and len(found) == 1
    if is_known and found[0] not in cached:
        try:
            return _download_from_hub(name, RELEASED_REPOSITORY, found[0], remedy, download)
        except CheckpointError as error:
            if not isinstance(error.__cause__, RemoteEntryNotFoundError):
                raise
            is_known = False
    if download and not is_known:
        try:
            files = _released_files(name, remedy)
        except CheckpointError:  # without a network
            if not found:
                raise
        found = _files_named_like(model, files)
    if len(found) == 1 and found[0] in cached:
        return cached[found[0]]
    if not download:
        raise NotDownloadedError(f'{name}: not downloaded yet')
    if len(found) != 1:
        rule = f'expected one file named like {model} in {constants.ENDPOINT}/{RELEASED_REPOSITORY}'
        shown = listed(found or files, None) or 'an empty repository'
        raise CheckpointError(f'{name}: {rule}, got {shown}; {ANY_RELEASED_FILE} names one of them')
    return _download_from_hub(name, RELEASED_REPOSITORY, found[0], remedy, download)


def _files_named_like(model: str, files: list[str]) -> list[str]:
    """Return the files whose names resemble the name of a model."""
    return [file for file in files if is_named_like(file, model)]


def _cached_files(model: str) -> dict[str, Path]:
    """Return the cached files that are named like a model, and where the newest copy of each is."""
    snapshots = _released_cache() / 'snapshots'
    cached = {}
    for path in sorted(snapshots.glob('*/**/*'), key=os.path.getmtime):
        file = str(Path(*path.relative_to(snapshots).parts[1:]))  # below the folder of a commit
        if path.is_file() and is_named_like(file, model):
            cached[file] = path
    return cached


def _released_cache() -> Path:
    """Return the cache folder of the authors' repository."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=RELEASED_REPOSITORY, repo_type='model')
    return Path(constants.HF_HUB_CACHE, folder)


def _remembered_files() -> list[str] | None:
    """Return the cached listing of the authors' repository; None if it was never listed."""
    try:
        return (_released_cache() / LIST_OF_FILES).read_text().splitlines()
    except FileNotFoundError:
        return None


def _released_files(name: str, remedy: str) -> list[str]:
    """List the files of the authors' repository on the hub, and cache the listing.

    See `_errors_in_one_line`.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import get_session

    address = f'{constants.ENDPOINT}/{RELEASED_REPOSITORY}'
    with _errors_in_one_line(name, address, remedy):
        # Without a network, this ends at once; the hub's client would try for half a minute.
        get_session().head(address, timeout=REACHED_WITHIN)
        files = HfApi().list_repo_files(RELEASED_REPOSITORY)
        remembered = _released_cache() / LIST_OF_FILES
        remembered.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(remembered, '\n'.join(files))
    return files


def other_released_files(source: str) -> str:
    """Return '; …', how to name another file of the authors; '' if the source is not theirs.

    `mmpola://MODEL` chooses a file by its name, and may choose the weights of another model.

    Args:
        source: the file, as messages name it, with its path in the cache.
    """
    if str(_released_cache()) not in source:
        return ''
    advice = f'; {ANY_RELEASED_FILE} names another file'
    files = _remembered_files()
    if files is not None:
        advice += f': {listed(files, None)}'
    return advice


def is_named_like(file: str, model: str) -> bool:
    """Whether the path of a checkpoint file has the family and size of a model, and no other size.

    A size is a word or a letter, with or without separators: 'pola_swin_t.pth',
    'PolaSwin-Tiny.pth', 'swin/tiny/model.safetensors'.

    Args:
        file: path in a repository.
        model: one of `PUBLISHED_MODELS`.
    """
    _, family, size = model.split('_')
    stem, _, suffix = file.lower().rpartition('.')
    if suffix not in ('pth', 'pt', 'bin', 'safetensors'):
        return False
    words = re.findall('[a-z]+|[0-9]+', stem.replace(family, f' {family} '))
    sizes = set()
    for word, letter in SIZE_LETTERS.items():
        if word in words or letter in words:
            sizes.add(word)
    return family in words and sizes == {size} and '384' not in words


def short_name(model: str) -> str:
    """Return the name of a model's file in `checkpoints/`: 'pola_swin_tiny' -> 'pola_swin_t'."""
    return '_'.join(SIZE_LETTERS.get(part, part) for part in model.split('_'))


def _download_from_hub(name: str, repository: str, file: str, remedy: str, download: bool) -> Path:
    """Return the file of a Hugging Face repository in the cache; see `_errors_in_one_line`."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils import get_session

    address = f'{constants.ENDPOINT}/{repository}/resolve/main/{file}'
    with _errors_in_one_line(name, address, remedy):
        # hf_hub_download asks the server even for a cached file: half a minute without a network.
        cached = try_to_load_from_cache(repository, file)
        if isinstance(cached, str):
            return Path(cached)
        if download:
            # Without a network, this ends at once; hf_hub_download would try for half a minute.
            get_session().head(address, timeout=REACHED_WITHIN)
            return Path(hf_hub_download(repository, file))
    raise NotDownloadedError(f'{name}: not downloaded yet')


def _download_url(url: str, download: bool) -> Path:
    """Return the file of an http(s) URL in torch's hub folder.

    Its name has a digest of the URL, so that files of the same name do not collide.
    """
    from filelock import FileLock

    file = Path(url.partition('?')[0])
    url_digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    folder = Path(torch.hub.get_dir()) / 'checkpoints'
    path = folder / f'{file.stem}-{url_digest}{file.suffix}'
    if not download and not path.is_file():
        raise NotDownloadedError(f'{url}: not downloaded yet')
    with _errors_in_one_line(url, url, 'give its path'):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f'{path}.lock'):  # one of several processes downloads, the others wait
            if not path.is_file():
                unchecked = Path(f'{path}.unchecked')
                torch.hub.download_url_to_file(url, str(unchecked))
                if not is_checkpoint(unchecked):
                    unchecked.unlink()
                    raise OSError('the server sent no checkpoint, or only a part of one')
                unchecked.replace(path)
    return path


def is_checkpoint(path: Path) -> bool:
    """Whether a file looks like a complete file of torch.save or safetensors."""
    from safetensors import SafetensorError, safe_open

    with path.open('rb') as file:
        start = file.read(len(OLD_FORMAT_START))
    if start == OLD_FORMAT_START or zipfile.is_zipfile(path):
        return True
    try:
        with safe_open(path, framework='pt'):
            return True
    except (SafetensorError, OSError):
        return False


@contextmanager
def _errors_in_one_line(name: str, address: str, remedy: str) -> Iterator[None]:
    """Turn any failure of a download into a CheckpointError of one line that says what to do.

    Args:
        name: what the user wrote.
        address: of the file.
        remedy: what to do with the file once the user has downloaded it elsewhere.
    """
    try:
        yield
    except Exception as error:  # HTTP libraries and the hub raise kinds of their own
        reason = f'cannot be downloaded ({first_line(error)})'
        advice = f'download {address} on another machine and {remedy}'
        raise CheckpointError(f'{name}: {reason}; {advice}') from error
