"""Which experiments there are: their configs, seeds and metrics, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Metric:
    """A metric of the test split.

    Attributes:
        title: its name in tables.
        key: its name in MMEngine's log.
        scale: what the log's value is multiplied with, for per cent.
    """

    title: str
    key: str
    scale: float = 1.0


@dataclass(frozen=True)
class Experiment:
    """One comparison: the same recipe with several variants, each with every seed.

    Attributes:
        title: what it compares.
        variants: config in `configs/` -> the variant's name in tables.
        metrics: of the test split. The first one decides which checkpoint is the best on the
            validation split.
        steps: the x axis of the curves: 'epochs' or 'steps'.
        test_images: number of images of the test split, if the first metric is an accuracy, whose
            sampling error follows from it. None: the sampling error is not known.
        rivals: variants that are networks of Ultralytics: model -> name in tables. Their runs are
            started by ultralytics_runs.py.
    """

    title: str
    variants: dict[str, str]
    metrics: tuple[Metric, ...]
    steps: str = 'steps'
    test_images: int | None = None
    rivals: dict[str, str] = field(default_factory=dict)

    @property
    def finds_boxes(self) -> bool:
        """Whether its networks are detectors, evaluated by mmdet's CocoMetric."""
        return self.metrics[0].key.startswith('coco/')

    @property
    def labels_pixels(self) -> bool:
        """Whether its networks are segmenters, evaluated by KeptIoUMetric."""
        return self.metrics[0].key == 'mIoU'

    @property
    def rows(self) -> dict[str, str]:
        """Variants and rivals: the name of the runs -> the name in tables."""
        return {**self.variants, **self.rivals}


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        variant: name of its config.
        seed: of all random numbers.
    """

    variant: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder and of its result."""
        return f'{self.variant}-{self.seed}'

    @property
    def config(self) -> Path:
        """Its config file."""
        return FOLDER / 'configs' / f'{self.variant}.py'


def backbones(task: str) -> dict[str, str]:
    """Return the variants of a detector or segmenter: config -> name in tables."""
    return {
        f'{task}_pola_swin': 'Pola-Swin',
        f'{task}_pola_pvt': 'Pola-PVT',
        f'{task}_swin': "mmdet's Swin",
        f'{task}_pvt': "mmdet's PVT",
    }


ACCURACY = Metric('accuracy', 'accuracy/top1')
BOXES = (Metric('AP', 'coco/bbox_mAP', 100), Metric('AP50', 'coco/bbox_mAP_50', 100))
LABEL_MAPS = (Metric('mIoU', 'mIoU'), Metric('pixel accuracy', 'aAcc'))


def starts(name: str, random: str = '') -> dict[str, str]:
    """Return the variants of a config that starts from the shipped weights.

    Args:
        name: of the config.
        random: config of the same network from random weights; default: NAME_random.
    """
    return {name: 'pretrained', random or f'{name}_random': 'random weights'}


EXPERIMENTS: dict[str, Experiment] = {
    'e1': Experiment(
        title='Detection of blood cells',
        variants=backbones('detect'),
        metrics=(
            *BOXES,
            Metric('AP, red cells', 'coco/RBC_precision', 100),
            Metric('white cells', 'coco/WBC_precision', 100),
            Metric('platelets', 'coco/Platelets_precision', 100),
        ),
        steps='epochs',
    ),
    'e2': Experiment(
        title='Segmentation of streets',
        variants=backbones('segment'),
        metrics=LABEL_MAPS,
    ),
    'e4': Experiment(
        title='Parts of the attention on CIFAR-10',
        variants={
            'classify_full': 'Pola-PVT',
            'classify_no_gate': 'without gate',
            'classify_no_mixing': 'without mixing',
            'classify_no_polarity': 'without polarity (ReLU)',
            'classify_softmax': 'softmax',
        },
        metrics=(ACCURACY,),
        steps='epochs',
        test_images=10_000,
    ),
    'e7-cells': Experiment(
        title='Blood cells',
        variants=starts('detect', random='detect_pola_swin'),
        metrics=BOXES,
        steps='epochs',
        rivals={'detect_yolov8n': 'YOLOv8n, random weights'},
    ),
    'e7-raccoons': Experiment(
        title='Raccoons',
        variants=starts('raccoons'),
        metrics=BOXES,
        steps='epochs',
        rivals={'raccoons_yolov8n': 'YOLOv8n, random weights'},
    ),
    'e7-streets': Experiment(
        title='Streets',
        variants=starts('segment', random='segment_pola_swin'),
        metrics=LABEL_MAPS,
    ),
    'e7-digits': Experiment(
        title='Digits shown by hand',
        variants=starts('digits'),
        metrics=(ACCURACY,),
        steps='epochs',
        test_images=516,
        rivals={'digits_yolo11n-cls': 'YOLO11n-cls, random weights'},
    ),
    'e7-pictures': Experiment(
        title='CIFAR-10, 300 pictures of a class',
        variants=starts('pictures'),
        metrics=(ACCURACY,),
        steps='epochs',
        test_images=10_000,
    ),
    'e8-cells': Experiment(
        title='Blood cells from the whole detector',
        variants={'detect_detector': 'whole detector', 'detect': 'backbone only'},
        metrics=BOXES,
        steps='epochs',
    ),
    'e8-raccoons': Experiment(
        title='Raccoons from the whole detector',
        variants={'raccoons_detector': 'whole detector', 'raccoons': 'backbone only'},
        metrics=BOXES,
        steps='epochs',
    ),
}

STARTS = ('e7-cells', 'e7-raccoons', 'e7-streets', 'e7-digits', 'e7-pictures')
"""The experiments on a pretrained start, which share a table and a figure."""


def experiment_of(variant: str) -> Experiment:
    """Return the first experiment that has this variant."""
    for experiment in EXPERIMENTS.values():
        if variant in experiment.variants:
            return experiment
    raise KeyError(variant)


def runs_of(keys: Iterable[str]) -> list[Run]:
    """Return the runs of experiments, all variants with one seed before the next seed."""
    runs = [
        Run(variant, seed)
        for key in keys
        for seed in SEEDS
        for variant in EXPERIMENTS[key].variants
    ]
    return list(dict.fromkeys(runs))  # experiments may share a variant
