"""Training of the Long Range Arena's models: throughput and peak memory of each attention, as
ratios to softmax.

PyTorch's softmax attention never stores the N x N matrix of weights; "stored softmax" does, as was
usual before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import AdamW
from tqdm import tqdm

from benchmarks.measure import ParityError, measured, ratio
from benchmarks.records import Row

CONFIGS = Path(__file__).resolve().parent.parent / 'configs'

BATCHES = {
    'cuda': {'image': 256, 'pathfinder': 128, 'listops': 32, 'text': 32, 'retrieval': 16},
    'cpu': {'image': 8, 'pathfinder': 8, 'listops': 4, 'text': 2, 'retrieval': 1},
}
"""Task -> samples per step; on a GPU those of the configs. A sample of Retrieval is a pair of
sequences.
"""

RATIOS = (
    ('pola', 'softmax'),
    ('pola', 'stored softmax'),
    ('polaformer_pp', 'softmax'),
    ('linear', 'softmax'),
)
"""The pairs of variants that are compared."""


def sequences(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure training steps of the configs' models on random sequences of the greatest length,
    without padding.

    The variants compute different functions, so instead of their results their shapes are compared.
    Weights are float32, with float16 autocast on a GPU.
    """
    for task, batch in tqdm(BATCHES[device].items(), 'tasks'):
        models = {name: _model(task, name).to(device) for name in ('softmax', 'pola', *peers)}
        length = models['softmax'].backbone.length
        data = _batch(models['softmax'], batch, device)
        check_shapes(task, models, data)
        runs = {
            name: partial(_step, model, AdamW(model.parameters(), weight_decay=0.0), data)
            for name, model in models.items()
        }
        if 'stored softmax' in runs:
            runs['stored softmax'] = sdpa_kernel(SDPBackend.MATH)(runs['stored softmax'])
        by_pass, memory = measured(
            {name: {'step': run} for name, run in runs.items()}, device, repeats
        )
        seconds = by_pass['step']
        row: Row = {'case': f'{task}, batch {batch}', 'tokens': length}
        for name, base in RATIOS:
            row[f'{name} over {base}, throughput'] = ratio(seconds, base, name)
            row[f'{name} over {base}, peak memory'] = ratio(memory, name, base)
        yield {
            **row,
            'samples per second': {name: batch / s for name, s in seconds.items()},
            'bytes': memory,
        }


def check_shapes(task: str, models: dict[str, Any], data: dict[str, Any]) -> None:
    """Raise ParityError unless all models have softmax's parameters, perhaps among others, and
    logits of one shape.
    """
    shapes = {
        name: {key: x.shape for key, x in model.named_parameters()}
        for name, model in models.items()
    }
    for name, found in shapes.items():
        if differing := [
            key for key, shape in shapes['softmax'].items() if found.get(key) != shape
        ]:
            raise ParityError(f'{task}: {name} and softmax differ in {", ".join(differing)}')
    with torch.no_grad():
        logits = {name: model(data['inputs']).shape for name, model in models.items()}
    if len(set(logits.values())) > 1:
        raise ParityError(f'{task}: the logits differ in shape: {logits}')


def _model(task: str, variant: str) -> Any:
    """Build the model of a task's config; every alpha has the same cost."""
    name = {'pola': 'pola_a3', 'stored softmax': 'softmax'}.get(variant, variant)
    cfg = Config.fromfile(CONFIGS / f'lra_{task}_{name}.py')
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model)


def _batch(model: Any, batch: int, device: str) -> dict[str, Any]:
    encoder, rows = model.backbone, 2 * batch if model.paired else batch
    tokens = torch.randint(1, encoder.vocab_size, (rows, encoder.length), device=device)
    return {
        'inputs': tokens,
        'data_samples': [BaseDataElement(gt_label=i % model.num_classes) for i in range(batch)],
    }


def _step(model: nn.Module, optimizer: AdamW, data: dict[str, Any]) -> Tensor:
    loss: Tensor = model(**data, mode='loss')['loss']
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    return loss
