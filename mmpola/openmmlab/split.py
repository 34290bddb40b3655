"""Divides images into training, validation and test. It copies or lists them, and never moves any.

An image's split follows from a hash of its name, so that the same names are always divided alike,
and a few more images change the split of few others. The copies of a photograph that Roboflow has
augmented stay in one split.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from mmpola.files import complete_folder, write_together
from mmpola.images import images_below, photograph
from mmpola.messages import OTHER_FORMATS, UsageError, counted, listed
from mmpola.pretraining.class_folders import ClassFolders

Counts = dict[str, int]
"""Number of images by split."""


def split_images(source: Path, out: Path, shares: Mapping[str, float], suffix: str) -> Counts:
    """Divide the images of a file or folder.

    Args:
        source: a file in COCO's format, which is divided into out/train.json, out/val.json …; a
            folder with images, whose names are listed in out/train.txt, out/val.txt …; or a folder
            with a folder of images for each class, which are copied to out/train/CLASS,
            out/val/CLASS …, in each class with the same shares.
        out: folder for the result; none of the files to be written may exist.
        shares: of each split but 'train', which takes the rest, in 0 … 1.
        suffix: end of the names of images in a folder, in capitals or not; the lists leave it out.

    Raises:
        UsageError: the source is none of these, too small to be divided, or a result exists.
        OSError: the disk refuses. Then nothing is written.
    """
    if source.is_file() and source.suffix == '.json':
        return _split_coco(source, out, shares)
    if not source.is_dir():
        raise UsageError(f"{source}: expected a folder, or a file in COCO's format, got neither")
    found = images_below(source, [suffix.lower()])
    images = [path for path in found.paths if os.sep not in path]
    if images:
        if found.left_out:
            print(f'{source}: left out: {found.others()}; --suffix lists others')
        below = len(found.paths) - len(images)
        if below:
            print(f'{source}: left out: {counted(below, "image")} in folders below')
        return _split_names(images, suffix, source, out, shares)
    if any(path.is_dir() and not path.name.startswith('.') for path in source.iterdir()):
        return _split_class_folders(source, out, shares)
    rule = f'expected files NAME{suffix} (--suffix) or class folders'
    raise UsageError(f'{source}: {rule}, got {found.others() or "neither"}')


def divide(
    names: Iterable[str], shares: Mapping[str, float], source: str | Path
) -> dict[str, list[str]]:
    """Divide names: each share at least one photograph, and one at least for 'train'.

    Args:
        names: different names; versions of one photograph stay together, see `photograph`.
        shares: see `split_images`.
        source: what an error names.

    Raises:
        UsageError: there are too few photographs.
    """
    versions: dict[str, list[str]] = {}
    for name in names:
        versions.setdefault(photograph(name), []).append(name)
    left = sorted(versions, key=lambda name: hashlib.sha256(name.encode()).digest())
    number = len(left)
    divided = {}
    for split, share in shares.items():
        count = max(1, round(share * number))
        divided[split] = left[:count]
        left = left[count:]
    if not left:
        rule = f'expected an image at least for each of train, {", ".join(shares)}'
        raise UsageError(f'{source}: {rule}, got {number} in all')
    members = {}
    for split, photographs in {'train': left, **divided}.items():
        members[split] = sorted(name for one in photographs for name in versions[one])
    return members


def _count_versions(names: Collection[str], source: Path) -> None:
    """Print how many photographs there are, if they have several versions."""
    photographs = set(map(photograph, names))
    if len(photographs) < len(names):
        count = counted(len(photographs), 'photograph')
        print(f'{source}: {count} in {len(names):,} versions, which stay together')


def _split_coco(source: Path, out: Path, shares: Mapping[str, float]) -> Counts:
    """Divide a file in COCO's format; all but its images and annotations is in every part."""
    try:
        content: dict[str, Any] = json.loads(source.read_bytes())
        files = {image['id']: image['file_name'] for image in content['images']}
        annotations = [(entry['image_id'], entry) for entry in content['annotations']]
    except (ValueError, KeyError, TypeError) as error:
        rule = "expected a file in COCO's format, with images and annotations"
        raise UsageError(f'{source}: {rule}, got {error!r}. {OTHER_FORMATS}') from error
    written = {}
    counts = {}
    names = set(files.values())
    _count_versions(names, source)
    for name, members in divide(names, shares, source).items():
        inside = set(members)
        kept = {key for key, file in files.items() if file in inside}
        part = dict(content)
        part['images'] = [image for image in content['images'] if image['id'] in kept]
        part['annotations'] = [entry for key, entry in annotations if key in kept]
        written[out / f'{name}.json'] = json.dumps(part).encode()
        counts[name] = len(kept)
    _write_new(written)
    return counts


def _split_names(
    files: list[str], suffix: str, source: Path, out: Path, shares: Mapping[str, float]
) -> Counts:
    """Write a list of names for each split, a name per line."""
    names = {file[: len(file) - len(suffix)] for file in files}
    renamed = [file for file in files if not file.endswith(suffix)]
    if renamed:
        rule = f'data sets look for NAME{suffix}: rename {len(renamed)} of the listed files'
        print(f'{source}: {rule}, {listed(renamed)}')
    _count_versions(names, source)
    divided = divide(names, shares, source)
    written = {}
    for name, members in divided.items():
        written[out / f'{name}.txt'] = ''.join(f'{member}\n' for member in members).encode()
    _write_new(written)
    return {name: len(members) for name, members in divided.items()}


def _split_class_folders(source: Path, out: Path, shares: Mapping[str, float]) -> Counts:
    """Copy the images of class folders, divided class by class."""
    if out.exists():
        raise UsageError(f'{out}: exists already; name a new folder')
    if out.resolve().is_relative_to(source.resolve()):
        raise UsageError(f'{out}: expected a folder outside of {source}, got one inside')
    try:
        images = ClassFolders(str(source), training=False, transform={'input_size': 224})
    except ValueError as error:
        raise UsageError(str(error)) from error
    for note in images.notes:
        print(note)
    by_class: dict[int, list[str]] = {}
    for index in range(len(images)):
        found = images.get_data_info(index)
        path = os.path.relpath(found['img_path'], source)
        by_class.setdefault(found['gt_label'], []).append(path)
    _count_versions([path for paths in by_class.values() for path in paths], source)
    classes = images.metainfo['classes']
    divided = []
    for label, paths in by_class.items():
        divided.append(divide(paths, shares, source / classes[label]))
    counts: Counts = {}
    with complete_folder(out) as folder:
        for parts in divided:
            for name, paths in parts.items():
                counts[name] = counts.get(name, 0) + len(paths)
                for path in paths:
                    target = folder / name / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source / path, target)
    return counts


def _write_new(contents: Mapping[Path, bytes]) -> None:
    """Write files, all or none.

    Raises:
        UsageError: one of them exists.
    """
    for path in contents:
        if os.path.lexists(path):
            raise UsageError(f'{path}: exists already; name another folder')
    write_together(contents)
