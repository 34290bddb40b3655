"""Training of the Long Range Arena's models: throughput and memory of each kind of attention.

PyTorch's softmax attention never stores the N x N matrix of weights; "stored softmax" does, as was
usual before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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
from benchmarks.records import ROOT, Row

CONFIG_OF_VARIANT = {
    'pola': 'pola_a3',  # every alpha has the same cost
    'polaformer_pp': 'polaformer_pp',
    'softmax': 'softmax',
    'stored softmax': 'softmax',
    'linear': 'linear',
}
"""Variant -> the end of its config's name, lra_TASK_END.py."""

BATCHES = {
    'cuda': {'image': 256, 'pathfinder': 128, 'listops': 32, 'text': 32, 'retrieval': 16},
    'cpu': {'image': 8, 'pathfinder': 8, 'listops': 4, 'text': 2, 'retrieval': 1},
}
"""Device -> samples per step by task; on a GPU those of the configs.

A sample of Retrieval is a pair of sequences.
"""

RATIOS = (
    ('pola', 'softmax'),
    ('pola', 'stored softmax'),
    ('polaformer_pp', 'softmax'),
    ('linear', 'softmax'),
)
"""The pairs of variants that are compared."""


def sequences(device: str, repeats: int) -> Iterator[Row]:
    """Measure training steps of the configs' models on random sequences of the greatest length.

    The variants compute different functions, so instead of their results their shapes are compared.
    Weights are float32, with float16 autocast on a GPU. There is no padding.
    """
    for task, batch in tqdm(BATCHES[device].items(), 'tasks'):
        models = {}
        for name in CONFIG_OF_VARIANT:
            models[name] = _model(task, name).to(device)
        data = _batch(models['softmax'], batch, device)
        check_shapes(task, models, data)
        passes = {}
        for name, model in models.items():
            optimizer = AdamW(model.parameters(), weight_decay=0.0)
            step: Callable[[], Tensor] = partial(_step, model, optimizer, data)
            if name == 'stored softmax':
                step = partial(_with_stored_weights, step)
            passes[name] = {'step': step}
        seconds_of_passes, memory = measured(passes, device, repeats)
        seconds = seconds_of_passes['step']
        row: Row = {'case': f'{task}, batch {batch}', 'tokens': models['softmax'].backbone.length}
        for name, base in RATIOS:
            row[f'{name} over {base}, throughput'] = ratio(seconds, base, name)
            row[f'{name} over {base}, peak memory'] = ratio(memory, name, base)
        row['samples per second'] = {name: batch / time for name, time in seconds.items()}
        row['bytes'] = memory
        yield row


def check_shapes(task: str, models: dict[str, Any], data: dict[str, Any]) -> None:
    """Raise ParityError unless all models have softmax's parameters and logits of one shape.

    They may have other parameters besides.
    """
    softmax_shapes = {name: x.shape for name, x in models['softmax'].named_parameters()}
    for variant, model in models.items():
        shapes = {name: x.shape for name, x in model.named_parameters()}
        differing = [name for name in softmax_shapes if shapes.get(name) != softmax_shapes[name]]
        if differing:
            raise ParityError(f'{task}: {variant} and softmax differ in {", ".join(differing)}')
    with torch.no_grad():
        logits = {variant: model(data['inputs']).shape for variant, model in models.items()}
    if len(set(logits.values())) > 1:
        raise ParityError(f'{task}: the logits differ in shape: {logits}')


def _model(task: str, variant: str) -> Any:
    """Build the model of a task's config."""
    cfg = Config.fromfile(ROOT / 'configs' / f'lra_{task}_{CONFIG_OF_VARIANT[variant]}.py')
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model)


def _batch(model: Any, batch: int, device: str) -> dict[str, Any]:
    """Draw a batch of random tokens, with labels of all classes in turn."""
    encoder = model.backbone
    rows = 2 * batch if model.paired else batch
    tokens = torch.randint(1, encoder.vocab_size, (rows, encoder.length), device=device)
    samples = [BaseDataElement(gt_label=index % model.num_classes) for index in range(batch)]
    return {'inputs': tokens, 'data_samples': samples}


def _step(model: nn.Module, optimizer: AdamW, data: dict[str, Any]) -> Tensor:
    loss: Tensor = model(**data, mode='loss')['loss']
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def _with_stored_weights(step: Callable[[], Tensor]) -> Tensor:
    """Run a step in which softmax attention stores its matrix of weights."""
    with sdpa_kernel(SDPBackend.MATH):
        return step()
