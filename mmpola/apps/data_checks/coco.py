"""What mmdet drops, or numbers otherwise, in files in COCO layout without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmpola.apps.data_checks.report import DatasetReport, add_line
from mmpola.messages import first_line, listed


@contextmanager
def kept_file(dataset: Any, report: DatasetReport) -> Iterator[None]:
    """Keep the annotation file that a data set reads with mmdet's COCO API, and forgets."""
    read = getattr(type(dataset), 'COCOAPI', None)
    if read is None:
        yield
        return

    def read_and_keep(path: str) -> Any:
        report.raw = read(path)
        return report.raw

    dataset.COCOAPI = read_and_keep
    yield
    del dataset.COCOAPI


def check_file(dataset: Any, report: DatasetReport) -> None:
    """Check ids, and that the classes are the categories in the order by which mmdet numbers them.

    Args:
        dataset: mmdet's CocoDataset or one like it.
        report: filled in; its `raw` is the file.
    """
    coco = report.raw
    place = report.place
    images = coco.dataset['images']
    if not images:
        report.problems.append(f'{place}: lists no images')
    if len(coco.imgs) < len(images):
        report.problems.append(f'{place}: {len(images)} images have {len(coco.imgs)} different ids')
    strays = []
    for annotation in coco.dataset.get('annotations', []):
        has_category = annotation.get('category_id', next(iter(coco.cats), None)) in coco.cats
        if annotation['image_id'] not in coco.imgs or not has_category:  # panoptic ones have none
            strays.append(annotation['id'])
    rule = f'{place}: ids of annotations whose image or category does not exist: mmdet drops them'
    add_line(report.warnings, rule, strays)
    if not hasattr(dataset, 'cat2label'):
        return
    names = [category['name'] for category in coco.dataset['categories']]
    lacking = [name for name in report.classes if name not in names]
    rule = (
        f'{place}: classes of the config without a category; set metainfo.classes, '
        f'the file has {listed(names)}'
    )
    add_line(report.problems, rule, lacking)
    numbered = [coco.cats[category]['name'] for category in dataset.cat2label]
    twice = [name for name, count in Counter(numbered).items() if count > 1]
    rule = f'{place}: several categories of one name; merge them in the file, or rename one'
    add_line(report.problems, rule, twice)
    if not lacking and not twice and numbered != list(report.classes):
        report.problems.append(
            f'{place}: metainfo.classes: expected the order of the file, by which mmdet '
            f'numbers them ({listed(numbered)}), got {listed(report.classes)}'
        )


def unreadable_annotations(dataset: Any, coco: Any) -> list[str]:
    """Name the annotations of a file that a data set cannot read, with the reason."""
    found = []
    for key, image in coco.imgs.items():
        for annotation in coco.imgToAnns.get(key, []):
            raw = {'raw_img_info': {**image, 'img_id': key}, 'raw_ann_info': [annotation]}
            try:
                dataset.parse_data_info(raw)
            except Exception as error:  # whatever a data set raises about a field
                found.append(f'id {annotation.get("id")} ({first_line(error)})')
    return found
