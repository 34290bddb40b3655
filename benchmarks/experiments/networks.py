"""What the attention of the trained networks does with test images: entropy, gate, exponents."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope

from benchmarks.experiments.plan import SEEDS, Run
from benchmarks.experiments.results import RESULTS
from benchmarks.experiments.running import is_finished, newest
from mmpola.files import write_atomically
from mmpola.openmmlab.predict.reader import open_reader
from mmpola.openmmlab.start.fit import load_model, read_checkpoint_for
from mmpola.papers import analysis
from mmpola.papers.analysis.attention_weights import sample_tokens

NETWORKS = {
    'detect_pola_swin': 'detector, Pola-Swin',
    'detect_pola_pvt': 'detector, Pola-PVT',
    'segment_pola_swin': 'segmenter, Pola-Swin',
    'segment_pola_pvt': 'segmenter, Pola-PVT',
}
"""Variants with linear attention of images -> their names in the table."""

KINDS = ('softmax', 'same', 'opposite', 'both', 'relu', 'linear')
IMAGES = 24
"""Images of the test split that are read, evenly spaced."""

QUERIES = 256
"""Queries of each layer and image whose entropy is computed, evenly spaced."""

Numbers = dict[str, float]


def analyze_networks(runs: Path, images: int = IMAGES) -> list[dict[str, Any]]:
    """Analyze all networks that have finished and write RESULTS/networks.json.

    Args:
        runs: folder of all runs. Variants without a finished run in it keep their rows, so that
            runs of several machines add up.
        images: how many images of the test split each network reads.

    Returns:
        A row for each variant and layer, the mean over seeds and images.
    """
    path = RESULTS / 'networks.json'
    earlier = []
    if path.exists():
        earlier = json.loads(path.read_text())
    rows = []
    for variant in NETWORKS:
        found = []
        for seed in SEEDS:
            run = Run(variant, seed)
            if is_finished(runs / run.name):
                found.extend(analyze_network(run, runs / run.name, images))
        if found:
            rows.extend(mean_rows(variant, found, images))
        else:
            rows.extend(row for row in earlier if row['variant'] == variant)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ',\n'.join(f' {json.dumps(row)}' for row in rows)
    write_atomically(path, f'[\n{lines}\n]\n')
    return rows


def analyze_network(run: Run, folder: Path, images: int) -> list[dict[str, Numbers]]:
    """Return, for each image, the numbers of each layer of a run's best checkpoint."""
    cfg = Config.fromfile(run.config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    model = load_model(model, read_checkpoint_for(newest(folder, 'best_*.pth'), model))
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    reader = open_reader(cfg)
    found = []
    for index in sample_tokens(len(dataset), images).tolist():
        scene = analysis.open_scene(model, reader, Path(dataset.get_data_info(index)['img_path']))
        found.append(analysis.observe(model.backbone, scene.inputs, layer_numbers))
    return found


def layer_numbers(layer: analysis.LayerInputs) -> Numbers:
    """Return entropies as shares of the largest, the gate's correlations and the exponents."""
    inputs = layer.attention
    largest = math.log(inputs.k.shape[1])
    entropies = analysis.row_entropies(inputs, sample_tokens(inputs.q.shape[1], QUERIES))
    numbers = {}
    for kind in KINDS:
        numbers[kind] = float(entropies[kind].nanmean()) / largest
    by_head = {kind: entropies[kind].nanmean(dim=1) for kind in ('both', 'linear')}
    numbers['heads_below_linear'] = float((by_head['both'] < by_head['linear']).float().mean())
    gate = analysis.gate_statistics(layer.mixing.gate, inputs.q.shape[2])
    numbers['correlation'] = float(gate.correlation.mean())
    numbers['token_correlation'] = float(gate.token_correlation.mean())
    exponents = inputs.feature_map.parameters()['exponent']
    assert exponents is not None
    numbers['smallest_exponent'] = float(exponents.min())
    numbers['largest_exponent'] = float(exponents.max())
    return numbers


def mean_rows(variant: str, found: list[dict[str, Numbers]], images: int) -> list[dict[str, Any]]:
    """Return one row per layer: the mean over networks and images, and ranges of what varies."""
    rows = []
    for layer in found[0]:
        of_layer = [numbers[layer] for numbers in found]
        row: dict[str, Any] = {
            'variant': variant,
            'layer': layer,
            'networks': len(found) // images,
            'images': images,
        }
        for key in (*KINDS, 'heads_below_linear', 'correlation', 'token_correlation'):
            row[key] = round(float(np.mean([numbers[key] for numbers in of_layer])), 4)
        for key in ('correlation', 'token_correlation'):
            values = [numbers[key] for numbers in of_layer]
            row[f'{key}_range'] = [round(min(values), 3), round(max(values), 3)]
        row['exponents'] = [
            round(min(numbers['smallest_exponent'] for numbers in of_layer), 3),
            round(max(numbers['largest_exponent'] for numbers in of_layer), 3),
        ]
        rows.append(row)
    return rows
