"""From a folder of labelled images to a config: `new_config`.

objects.py, maps.py and classes.py read formats into the one description of description.py,
decide.py decides from it, write.py writes the config, show.py prints and draws.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from mmpola.files import complete_folder, write_atomically
from mmpola.messages import UsageError, counted, listed
from mmpola.openmmlab.new import classes, decide, maps, objects, show, write
from mmpola.openmmlab.new.description import (
    BOXES,
    CLASSES,
    LABEL_MAPS,
    OUTLINES,
    TASKS,
    Folder,
    Found,
)

FORMATS = ('coco', 'voc', 'yolo', 'via', 'labelme', 'cvat', 'label-maps', 'classes')
"""Values of --format."""


def new_config(args: argparse.Namespace) -> None:
    """Look at a folder, print what it holds, and write a config, its files and a picture.

    Args:
        args: of tools/new.py.

    Raises:
        UsageError: the folder holds nothing that can be learned, or what is not decided; or the
            config exists. Then nothing is written.
        OSError: the disk refuses. Then nothing is written.
    """
    source = Path(args.folder)
    if not source.is_dir():
        raise UsageError(f'{source}: expected a folder of labelled images, got none')
    out = Path(args.out or f'{source.resolve().name}.py')
    data = out.with_name(f'{out.stem}_data').absolute()
    for path in (out, data):
        if os.path.lexists(path):
            raise UsageError(f'{path}: exists already; --out FILE names another config')
    if out.suffix != '.py' or not out.absolute().parent.is_dir():
        raise UsageError(
            f'--out: expected a name that ends with .py in an existing folder, got {out}'
        )
    folder = Folder(source)
    wanted = args.classes.split(',') if args.classes else None
    task = args.task
    plan = None
    if args.model:
        plan = write.base_of(args.model, '')
        task = task or write.task_of(plan.cfg)
    found = recognised(folder, args.format, task)
    print(f'{source}: {found.kind} ({found.evidence})')
    if found.task == LABEL_MAPS:
        maps.read_values(found, folder, wanted)
    else:
        decide.choose_classes(found, wanted)
    reasons = [decide.choose_splits(found, folder.root)]
    if found.task in (BOXES, OUTLINES):
        objects.choose_task(found, task)
        write.mend_objects(found)
    decide.drop_absent_classes(found)
    plan = plan or write.base_of(None, found.task)
    if args.size or plan.is_recipe:
        size, reason = decide.choose_size(found, args.size)
        plan = plan._replace(size=size)
        reasons.append(reason)
    if plan.is_recipe:
        batch, epochs, reason = decide.choose_length(found, plan.cfg)
        plan = plan._replace(batch=batch, epochs=epochs)
        reasons.append(reason)
    number = len(found.classes)
    number_text = f'{number} classes' if number > 1 else '1 class'
    print(f'task: {found.task}; {number_text}: {listed(found.classes, 12)}')
    print(*reasons, *found.notes, *show.table_lines(found), sep='\n')
    writers: dict[str, Callable[..., write.Arguments]] = {
        BOXES: write.object_files,
        OUTLINES: write.object_files,
        LABEL_MAPS: write.label_map_files,
        CLASSES: write.class_links,
    }
    with complete_folder(data) as partial:
        arguments = writers[found.task](found, partial, data, folder.root)
        if len(found.classes) > write.MANY_CLASSES:
            (partial / 'classes.txt').write_text('\n'.join(found.classes) + '\n')
    try:
        text = write.config_text(found, plan, arguments, folder, out, data)
        write_atomically(out, text)
        show.check_and_draw(found, out, data / 'data.jpg', plan.is_recipe)
    except BaseException:  # Ctrl-C too
        out.unlink(missing_ok=True)
        shutil.rmtree(data, ignore_errors=True)
        raise


def recognised(folder: Folder, wanted: str | None, task: str | None) -> Found:
    """Return what a folder holds.

    Args:
        folder: of the images.
        wanted: one of `FORMATS`; None: what is there.
        task: one of `TASKS`; None: that of the format.

    Raises:
        UsageError: nothing is recognised, or several formats are.
    """
    if not folder.images:
        raise UsageError(f'{folder.root}: expected images, got none')
    found: dict[str, Found] = {}
    for name, one in readers(folder, wanted, task):
        read = one()
        if read is not None and read.samples:
            found[name] = read
    if len(found) > 1:
        seen = '; '.join(f'{one.kind} ({one.evidence})' for one in found.values())
        raise UsageError(
            f'{folder.root}: several formats: {seen}; --format {" or ".join(found)} decides'
        )
    if found:
        return found.popitem()[1]
    if (wanted or 'classes') == 'classes' and (task or CLASSES) == CLASSES:
        classes_found = classes.read_class_folders(folder)
        if classes_found is not None:
            return classes_found
    files = [f'{len(paths)} {suffix}' for suffix, paths in folder.others.items() if paths]
    got = listed([counted(len(folder.images), 'image'), *files], None)
    rule = f'expected {wanted or task or "labels that are known"}'
    raise UsageError(f'{folder.root}: {rule} ({", ".join(FORMATS)}), got {got}')


def readers(
    folder: Folder, wanted: str | None, task: str | None
) -> list[tuple[str, Callable[[], Found | None]]]:
    """Return the readers of the formats that are asked for, but for class folders."""
    contents = objects.json_contents(folder)
    roots = objects.xml_roots(folder)
    of_objects: list[tuple[str, Callable[[], Found | None]]] = [
        ('coco', lambda: objects.read_coco(folder, contents)),
        ('voc', lambda: objects.read_voc(folder, roots)),
        ('yolo', lambda: objects.read_yolo(folder)),
        ('via', lambda: objects.read_via(folder, contents)),
        ('labelme', lambda: objects.read_labelme(folder, contents)),
        ('cvat', lambda: objects.read_cvat(folder, roots)),
    ]
    of_maps: list[tuple[str, Callable[[], Found | None]]] = [
        ('label-maps', lambda: maps.read_label_maps(folder))
    ]
    chosen = []
    if task in (None, BOXES, OUTLINES):
        chosen += of_objects
    if task in (None, LABEL_MAPS):
        chosen += of_maps
    return [(name, one) for name, one in chosen if wanted in (None, name)]


__all__ = ['FORMATS', 'TASKS', 'new_config']
