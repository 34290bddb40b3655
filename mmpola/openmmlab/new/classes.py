"""Folders of classes: CLASS/IMAGE or SPLIT/CLASS/IMAGE."""

from __future__ import annotations

import os
from pathlib import Path

from timm.utils.misc import natural_key

from mmpola.messages import counted, listed
from mmpola.openmmlab.new.description import CLASSES, SPLIT_OF, Folder, Found, Sample

NO_CLASSES = {'images', 'image', 'imgs', 'img', 'jpegimages', 'photos', 'annotations', 'labels'}
"""Names of folders that hold images of all classes."""


def read_class_folders(folder: Folder) -> Found | None:
    """Read folders of classes, below folders of splits or not; None if they are none."""
    paths = [Path(path) for path in folder.images]
    depth = 0
    while paths and all(len(path.parts) > depth + 2 for path in paths):
        first = {path.parts[depth] for path in paths}
        if len(first) > 1 or first.pop().lower() in SPLIT_OF:
            break
        depth += 1  # a folder that holds everything
    root = folder.root.joinpath(*paths[0].parts[:depth]) if paths else folder.root
    entries = [
        entry for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith('.')
    ]
    has_splits = 'train' in {SPLIT_OF.get(entry.name.lower()) for entry in entries}
    samples = []
    outside = []
    for path in paths:
        parts = path.parts[depth:-1]
        split = SPLIT_OF.get(parts[0].lower(), '') if has_splits and parts else ''
        inside = parts[1:] if has_splits else parts
        if not inside or (has_splits and not split):
            outside.append(str(path))
        else:
            samples.append(Sample(folder.root / path, split, name=inside[0]))
    names = sorted({sample.name for sample in samples}, key=natural_key)  # as ClassFolders
    if len(names) < 2 or {name.lower() for name in names} & NO_CLASSES:
        return None
    shape = 'SPLIT/CLASS/IMAGE' if has_splits else 'CLASS/IMAGE'
    evidence = f'{counted(len(names), "folder")} of images ({listed(names)}), {shape}'
    found = Found('folders of classes', evidence, CLASSES, samples, names)
    if outside:
        found.notes.append(
            f'left out: {counted(len(outside), "image")} in no class: {listed(outside, 3)}'
        )
    if has_splits and not outside:
        for entry in entries:
            found.files[SPLIT_OF.get(entry.name.lower(), '')] = (Path(entry.path), root)
    tops = [Path(entry.path) for entry in entries]
    classes = (
        [path for top in tops for path in top.iterdir() if path.is_dir()] if has_splits else tops
    )
    empty = sorted({path.name for path in classes} - set(names))
    if empty:
        found.notes.append(
            f'left out: {counted(len(empty), "folder")} without images: {listed(empty)}'
        )
        found.files.clear()
    return found
