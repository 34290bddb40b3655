"""Which experiments there are: their configs, seeds and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Experiment:
    """One comparison: the same recipe with several variants, each with every seed.

    Attributes:
        key: its name in commands, folders and results, 'e1' say.
        title: what it compares.
        metric: the name of its first metric in MMEngine's log.
        scale: what the log's values are multiplied with, for per cent.
        variants: name of a variant -> its config in `configs/`.
        others: further metrics of the test split: name in the table -> name in the log.
    """

    key: str
    title: str
    metric: str
    scale: float
    variants: dict[str, str]
    others: dict[str, str]


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        experiment: which comparison it belongs to.
        variant: name of its variant.
        seed: of all random numbers.
    """

    experiment: Experiment
    variant: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder and of its result."""
        return f'{self.experiment.key}-{self.variant}-{self.seed}'

    @property
    def config(self) -> Path:
        """Its config file."""
        return FOLDER / 'configs' / f'{self.experiment.variants[self.variant]}.py'


EXPERIMENTS: dict[str, Experiment] = {
    'e1': Experiment(
        key='e1',
        title='detection of blood cells',
        metric='coco/bbox_mAP',
        scale=100.0,
        variants={
            'pola_swin': 'detect_pola_swin',
            'pola_pvt': 'detect_pola_pvt',
            'swin': 'detect_swin',
            'pvt': 'detect_pvt',
        },
        others={
            'AP50': 'coco/bbox_mAP_50',
            'RBC': 'coco/RBC_precision',
            'WBC': 'coco/WBC_precision',
            'platelets': 'coco/Platelets_precision',
        },
    ),
}


def runs_of(experiment: Experiment) -> list[Run]:
    """Return the runs of an experiment, all variants with one seed before the next seed."""
    return [Run(experiment, variant, seed) for seed in SEEDS for variant in experiment.variants]
