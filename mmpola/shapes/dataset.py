"""The whole data set: which scenes it holds, and a folder that is either complete or not there."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from mmpola.shapes.layouts import ClassFolders, CocoInstances, LabelMaps, jpeg
from mmpola.shapes.scene import check_scene_options, draw_scene

_PROGRAM = 'mmpola.shapes'
_DRAWING = 1  # raise it when the same options begin to give other pictures
_RECORD = 'shapes.json'
_OWN_FILE = re.compile(
    r'shapes\.json'
    r'|coco/(train|val)2017/\d{12}\.jpg'
    r'|coco/annotations/instances_(train|val)2017\.json'
    r'|ade/images/(training|validation)/\d{12}\.jpg'
    r'|ade/annotations/(training|validation)/\d{12}\.png'
    r'|classes/(train|val)/[a-z]+/\d{12}_\d\.jpg'
)

_FIRST_INDEX = {'train': 0, 'val': 1_000_000}  # of the scenes of a split
_FIRST_SPARE = 500_000  # from a split's first index on: scenes that are drawn for crops only
_LEAST_CROPS = 4  # of every class, in both splits

Options = dict[str, Any]


def write_dataset(
    out: str | Path,
    images: int,
    val_images: int | None = None,
    size: tuple[int, int] = (192, 160),
    seed: int = 0,
    force: bool = False,
) -> bool:
    """Write `images` training and `val_images` (default: a fifth) validation scenes, in all layouts, to folder `out`.

    `size` is (W, H) in pixels. False says that `out` already holds exactly this set, and nothing was done. `force`
    replaces a set that this program wrote. `out` appears when the set is complete; until then it is `out`.part.

    Raises ValueError for an argument outside its range, and FileExistsError when `out` (or what would be `out`.part)
    holds anything else.
    """
    if val_images is None:
        val_images = max(1, images // 5)
    for name, number in ('images', images), ('val_images', val_images):
        if not 1 <= number <= _FIRST_SPARE:
            raise ValueError(f'{name}: expected 1 to {_FIRST_SPARE}, got {number}')
    check_scene_options(seed, size)
    options: Options = {
        'images': images,
        'val_images': val_images,
        'size': list(size),
        'seed': seed,
        'drawing': _DRAWING,
    }

    out = Path(out).resolve()
    if _holds(out, options, force):
        return False
    part, old = (out.with_name(out.name + ending) for ending in ('.part', '.old'))
    for leftover in part, old:
        _remove_own(leftover)
    try:
        _write_split(part, 'train', images, options)
        _write_split(part, 'val', val_images, options)
        record = {'program': _PROGRAM, 'options': options, 'files': _own_files(part) + 1}
        (part / _RECORD).write_text(json.dumps(record, indent=2) + '\n')
    except BaseException:  # Ctrl-C too
        shutil.rmtree(part, ignore_errors=True)
        raise
    if out.exists():
        out.rename(old)
    part.rename(out)
    _remove_own(old)
    return True


def _write_split(root: Path, split: str, images: int, options: Options) -> None:
    coco, ade = CocoInstances(root / 'coco', split), LabelMaps(root / 'ade', split)
    classes = ClassFolders(root / 'classes', split)
    seed, size = options['seed'], tuple(options['size'])
    first = _FIRST_INDEX[split]
    for index in _with_progress(range(first, first + images), split):
        scene = draw_scene(seed, index, size)
        image_bytes = jpeg(scene.image)
        coco.add(index + 1, scene, image_bytes)
        ade.add(index + 1, scene, image_bytes)
        classes.add(index + 1, scene)
    coco.finish()
    spare = first + _FIRST_SPARE
    while min(classes.count.values()) < _LEAST_CROPS:
        classes.add(spare + 1, draw_scene(seed, spare, size))
        spare += 1


def _with_progress(indices: range, split: str) -> Iterable[int]:
    console = Console(stderr=True)
    return track(indices, f'drawing {split}', console=console, transient=True, disable=not console.is_terminal)


def _holds(out: Path, options: Options, force: bool) -> bool:
    """Whether `out` already is this set, complete; FileExistsError when it may not be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    record = _read_record(out)
    own = _own_files(out)
    if force:
        return False
    if record['options'] != options:
        made_with = ', '.join(f'{name} {value}' for name, value in record['options'].items())
        raise FileExistsError(f'{out} holds a set with other options ({made_with}): take another folder, or --force')
    if own != record['files']:
        raise FileExistsError(f'{out} holds {own} of its {record["files"]} files: write it anew with --force')
    return True


def _read_record(out: Path) -> dict[str, Any]:
    """What `write_dataset` noted in `out`; FileExistsError when `out` is not one of its folders."""
    try:
        record = json.loads((out / _RECORD).read_text())
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or record.get('program') != _PROGRAM:
        raise FileExistsError(f'{out} was not made by {_PROGRAM} and is left alone: take another folder')
    return record


def _own_files(folder: Path) -> int:
    """How many files of a set are in `folder`; FileExistsError when there are others."""
    names = [
        path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_symlink() or not path.is_dir()
    ]
    for name in names:
        if not _OWN_FILE.fullmatch(name):
            raise FileExistsError(f'{folder} holds {name}, which {_PROGRAM} did not write: take another folder')
    return len(names)


def _remove_own(folder: Path) -> None:
    """Remove what a run left behind; FileExistsError when there is anything else in it."""
    if folder.exists():
        _own_files(folder)
        shutil.rmtree(folder)
