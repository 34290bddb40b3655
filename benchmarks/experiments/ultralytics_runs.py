"""Train Ultralytics' small networks on the data of our experiments, from random weights.

    pip install ultralytics
    python -m benchmarks.experiments.ultralytics_runs raccoons_yolov8n --epochs 20

A run has Ultralytics' own recipe, with one thread and as many epochs as make its CPU minutes ours.
It reads the splits of our config, detectors at 256 pixels and classifiers at 96. Ultralytics keeps
the weights that are best on the validation split. The test split is evaluated as ours is: boxes by
mmdet's CocoMetric. The record goes to benchmarks/results/experiments.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from mmdet.evaluation import CocoMetric
from mmengine.config import Config

from benchmarks.experiments.floors import split_of
from benchmarks.experiments.plan import EXPERIMENTS, SEEDS, Experiment, Run
from benchmarks.experiments.results import save
from benchmarks.experiments.running import CODE, machine
from benchmarks.records import ROOT, trees

DETECTOR_SIZE = 256
CLASSIFIER_SIZE = 96
SPLITS = ('train', 'val', 'test')


def fresh_link(link: Path, target: Path) -> None:
    """Make a link to a file, also over an older one."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target.resolve())


def images_of(config: Config) -> Iterator[tuple[str, Path, dict[str, Any], Any]]:
    """Yield (split, path, information, data set) of every image of a config."""
    for split in SPLITS:
        dataset = split_of(config, split)
        for number in range(len(dataset)):
            info = dataset.get_data_info(number)
            yield split, Path(info['img_path']), info, dataset


def write_boxes(config: Config, folder: Path) -> Path:
    """Write the splits of a detector's config in YOLO's format; return the file that names them."""
    for split, image, info, _ in images_of(config):
        fresh_link(folder / 'images' / split / image.name, image)
        lines = []
        for instance in info['instances']:
            x1, y1, x2, y2 = instance['bbox']
            x = (x1 + x2) / 2 / info['width']
            y = (y1 + y2) / 2 / info['height']
            width = (x2 - x1) / info['width']
            height = (y2 - y1) / info['height']
            lines.append(f'{instance["bbox_label"]} {x} {y} {width} {height}\n')
        labels = folder / 'labels' / split / f'{image.stem}.txt'
        labels.parent.mkdir(parents=True, exist_ok=True)
        labels.write_text(''.join(lines))
    names = dict(enumerate(config.metainfo['classes']))
    description = {'path': str(folder), 'names': names}
    description |= {split: f'images/{split}' for split in SPLITS}
    file = folder / 'data.yaml'
    Config(description).dump(file)
    return file


def write_classes(config: Config, folder: Path) -> Path:
    """Link the splits of a classifier's config as class folders; return their folder."""
    for split, image, info, dataset in images_of(config):
        name = dataset.metainfo['classes'][info['gt_label']]
        fresh_link(folder / split / name / image.name, image)
    return folder


def test_boxes(model: Any, config: Config) -> dict[str, float]:
    """Return the metrics of mmdet's CocoMetric for a detector on the test split."""
    dataset = split_of(config, 'test')
    metric = CocoMetric(metric='bbox')
    metric.dataset_meta = dataset.metainfo
    for number in range(len(dataset)):
        info = dataset.get_data_info(number)
        found = model.predict(
            info['img_path'], imgsz=DETECTOR_SIZE, conf=0.001, max_det=100, verbose=False
        )
        boxes = found[0].boxes
        predicted = {
            'bboxes': boxes.xyxy.cpu(),
            'scores': boxes.conf.cpu(),
            'labels': boxes.cls.cpu().long(),
        }
        sample = {
            'img_id': info['img_id'],
            'ori_shape': (info['height'], info['width']),
            'instances': info['instances'],
            'pred_instances': predicted,
        }
        metric.process({}, [sample])
    scores: dict[str, float] = metric.evaluate(len(dataset))
    return scores


def test_classes(model: Any, config: Config) -> dict[str, float]:
    """Return the accuracy of a classifier on the test split."""
    dataset = split_of(config, 'test')
    right = 0
    for number in range(len(dataset)):
        info = dataset.get_data_info(number)
        found = model.predict(info['img_path'], imgsz=CLASSIFIER_SIZE, verbose=False)
        answer = found[0].names[found[0].probs.top1]
        right += answer == dataset.metainfo['classes'][info['gt_label']]
    return {'accuracy/top1': 100 * right / len(dataset)}


def run(variant: str, experiment: Experiment, seed: int, epochs: int, work: Path) -> dict[str, Any]:
    """Train and test one network; return its record."""
    from ultralytics import YOLO

    name, model_name = variant.rsplit('_', 1)
    config = Config.fromfile(Run(name, seed).config)
    data = work / 'ultralytics' / name
    is_classifier = model_name.endswith('-cls')
    if is_classifier:
        source = write_classes(config, data)
        size = CLASSIFIER_SIZE
    else:
        source = write_boxes(config, data)
        size = DETECTOR_SIZE
    model = YOLO(f'{model_name}.yaml')
    started = time.strftime('%Y-%m-%d %H:%M:%S')
    wall = time.monotonic()
    cpu = time.process_time()
    model.train(
        data=str(source),
        imgsz=size,
        epochs=epochs,
        seed=seed,
        pretrained=False,
        device='cpu',
        workers=0,
        plots=False,
        project=str(work),
        name=f'{variant}-{seed}',
        exist_ok=True,
    )
    best = YOLO(model.trainer.best)
    tested = test_classes(best, config) if is_classifier else test_boxes(best, config)
    cpu_minutes = (time.process_time() - cpu) / 60
    wall_minutes = (time.monotonic() - wall) / 60
    test = {}
    for metric in experiment.metrics:
        test[metric.title] = round(tested[metric.key] * metric.scale, 2)
    return {
        'run': f'{variant}-{seed}',
        'variant': variant,
        'seed': seed,
        'test': test,
        'parameters': sum(x.numel() for x in best.model.parameters()),
        'epochs': epochs,
        'cpu_minutes': round(cpu_minutes, 1),
        'wall_minutes': round(wall_minutes, 1),
        'resumed': 0,
        'trees': [trees(CODE)],
        'started': started,
        'machine': {**machine(), 'ultralytics': version('ultralytics')},
        'validation': [],
    }


def main() -> None:
    rivals = {name: experiment for experiment in EXPERIMENTS.values() for name in experiment.rivals}
    parser = argparse.ArgumentParser(description='Train networks of Ultralytics')
    parser.add_argument('variant', choices=rivals)
    parser.add_argument('--epochs', type=int, required=True)
    parser.add_argument('--seeds', nargs='+', type=int, default=SEEDS)
    parser.add_argument('--runs', type=Path, default=Path('work_dirs/experiments'))
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.chdir(ROOT)
    for seed in args.seeds:
        record = run(args.variant, rivals[args.variant], seed, args.epochs, args.runs.resolve())
        print(f'{save(record)}: {record["test"]}, {record["cpu_minutes"]} CPU minutes')


if __name__ == '__main__':
    main()
