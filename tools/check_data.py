"""Checks the data that a config names before anything is built: folders, annotation files, every image they list.

    python tools/check_data.py CONFIG [--cfg-options KEY=VALUE …]

train.py and test.py run the same check first. Exit status 2 and one line per problem if something is missing.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config
from runtime import UsageError, add_common_arguments, load_config, run_main

SPLITS = ('train', 'val', 'test')
SHOWN = 5
"""How many missing images are named; the rest is counted."""


def check_data(cfg: Config, splits: tuple[str, ...] = SPLITS) -> dict[str, int]:
    """Number of images listed per annotation file.

    Raises:
        UsageError: a folder, an annotation file or an image that it lists is missing; names all of them and the layout.
    """
    counts: dict[str, int] = {}
    problems: list[str] = []
    expected: list[str] = []
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        for dataset in _leaf_datasets(loader.dataset) if loader else ():
            for path in _paths(dataset):
                if str(path) not in expected:
                    expected.append(str(path))
                    if not path.exists():
                        problems.append(f'{path}: not found (looked from {Path.cwd()})')
            annotations, images = _annotations_and_images(dataset)
            if annotations and images and annotations.is_file() and images.is_dir() and str(annotations) not in counts:
                listed = _listed_images(annotations)
                counts[str(annotations)] = len(listed)
                problems += _missing_images(annotations, images, listed)
        truth = (cfg.get(f'{split}_evaluator') or {}).get('ann_file')
        if truth and not Path(truth).is_file():
            problems.append(f'{truth}: not found ({split}_evaluator.ann_file)')
    if problems:
        layout = '\n'.join(f'  {path}' for path in expected)
        raise UsageError(
            'the data is not complete\n'
            + '\n'.join(f'  {problem}' for problem in problems)
            + f'\nthe config expects\n{layout}\n'
            'data elsewhere: link its folder to this place (mkdir -p data; ln -s /path/to/it data/)'
        )
    return counts


def _leaf_datasets(dataset: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The data sets inside wrappers such as RepeatDataset, ConcatDataset, MultiImageMixDataset."""
    if 'dataset' in dataset:
        yield from _leaf_datasets(dataset['dataset'])
    elif 'datasets' in dataset:
        for inner in dataset['datasets']:
            yield from _leaf_datasets(inner)
    else:
        yield dataset


def _paths(dataset: dict[str, Any]) -> list[Path]:
    """The annotation file and the folders of a data set."""
    root = Path(dataset.get('data_root') or '')
    names = [dataset.get('ann_file'), *(dataset.get('data_prefix') or {}).values()]
    return [root / name for name in names if name] or [root]


def _annotations_and_images(dataset: dict[str, Any]) -> tuple[Path | None, Path | None]:
    """The COCO json and the image folder, None for a data set of another kind."""
    root = Path(dataset.get('data_root') or '')
    annotations, images = dataset.get('ann_file') or '', (dataset.get('data_prefix') or {}).get('img')
    return (root / annotations, root / images) if annotations.endswith('.json') and images is not None else (None, None)


def _listed_images(annotations: Path) -> list[str]:
    try:
        return [image['file_name'] for image in json.loads(annotations.read_bytes())['images']]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f'{annotations}: not a COCO annotation file ({error!r})') from None


def _missing_images(annotations: Path, images: Path, listed: list[str]) -> list[str]:
    present = set(os.listdir(images))
    missing = [name for name in listed if name not in present and not (images / name).is_file()]
    if not missing:
        return []
    more = f' and {len(missing) - SHOWN} more' if len(missing) > SHOWN else ''
    return [f'{annotations} lists images that are not in {images}: ' + ', '.join(missing[:SHOWN]) + more]


def main() -> None:
    parser = argparse.ArgumentParser(description='Check the data that a config names')
    parser.add_argument('config', help='config file')
    add_common_arguments(parser)
    for path, count in check_data(load_config(parser.parse_args())).items():
        print(f'{path}: {count} images, all present')


if __name__ == '__main__':
    run_main(main)
