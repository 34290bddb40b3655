"""Write the whole data set, into a folder that is either complete or does not exist."""

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
_DRAWING = 1  # version of the drawing code: raise it when the same options give other images
_RECORD = 'shapes.json'
_OWN_FILE = re.compile(
    r'shapes\.json'
    r'|coco/(train|val)2017/\d{12}\.jpg'
    r'|coco/annotations/instances_(train|val)2017\.json'
    r'|ade/images/(training|validation)/\d{12}\.jpg'
    r'|ade/annotations/(training|validation)/\d{12}\.png'
    r'|classes/(train|val)/[a-z]+/\d{12}_\d\.jpg'
)

_FIRST_INDEX = {'train': 0, 'val': 1_000_000}  # index of the first scene of a split
_FIRST_SPARE = 500_000  # scenes from this offset in a split are drawn for crops only
_LEAST_CROPS = 4  # per class and split

Options = dict[str, Any]


def write_dataset(
    out: str | Path,
    images: int,
    val_images: int | None = None,
    size: tuple[int, int] = (192, 160),
    seed: int = 0,
    force: bool = False,
) -> bool:
    """Write training and validation scenes in all layouts.

    Args:
        out: folder; until the data set is complete it is called `out`.part.
        images: number of training scenes.
        val_images: number of validation scenes; None: a fifth of `images`.
        size: (width, height) in pixels.
        seed: of the scenes.
        force: replace a data set that this function wrote.

    Returns:
        False if `out` already holds exactly this data set, so that nothing was done.

    Raises:
        ValueError: an argument is out of range.
        FileExistsError: `out`, or `out`.part, holds anything else.
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
    """Whether `out` holds this data set, complete; raises FileExistsError if it may not be replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    record = _read_record(out)
    own = _own_files(out)
    if force:
        return False
    if record['options'] != options:
        made_with = ', '.join(f'{name} {value}' for name, value in record['options'].items())
        raise FileExistsError(
            f'{out} holds a data set with other options ({made_with}): use another folder, or --force'
        )
    if own != record['files']:
        raise FileExistsError(f'{out} holds {own} of its {record["files"]} files: write it again with --force')
    return True


def _read_record(out: Path) -> dict[str, Any]:
    """Read the record that `write_dataset` keeps in `out`; raises FileExistsError if there is none."""
    try:
        record = json.loads((out / _RECORD).read_text())
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or record.get('program') != _PROGRAM:
        raise FileExistsError(f'{out} was not written by {_PROGRAM} and is not touched: use another folder')
    return record


def _own_files(folder: Path) -> int:
    """Count the files of a data set in `folder`; raises FileExistsError if there are others."""
    names = [
        path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_symlink() or not path.is_dir()
    ]
    for name in names:
        if not _OWN_FILE.fullmatch(name):
            raise FileExistsError(f'{folder} holds {name}, which {_PROGRAM} did not write: use another folder')
    return len(names)


def _remove_own(folder: Path) -> None:
    """Remove what an interrupted run left behind; raises FileExistsError if there is anything else in it."""
    if folder.exists():
        _own_files(folder)
        shutil.rmtree(folder)
