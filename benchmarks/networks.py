"""Compare backbones and attention layers with other implementations, over the image size and the
number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import timm
import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.measure import check_parity, measured, ratio, time_ratios
from benchmarks.operators import Call, Function, all_tensors
from benchmarks.peers import literal_attention, literal_mix_and_gate
from benchmarks.records import Row
from mmpola import PolaAttention, PolaFormerPPAttention, PolaMultiheadAttention
from mmpola.backbones import PolaPVT, PolaSwin
from mmpola.backbones.zoo import ARCHITECTURES

SIZES = {'cuda': {(224, 224): 64, (800, 1333): 2}, 'cpu': {(224, 224): 8}}
"""Batch size by image size. Training steps at 800 x 1333 take minutes each on a CPU."""

IMAGE_SIZES = [
    (224, 224),
    (384, 384),
    (512, 512),
    (768, 768),
    (800, 1344),
    (1280, 1280),
    (1600, 1600),
]
"""(height, width) in pixels; 800 x 1344 is COCO's usual test size, padded to a multiple of 32."""

SIBLINGS = {'Pola-PVT-T': 'PVT-T', 'Pola-Swin-T': 'Swin-T'}
"""Our backbone -> mmdet's with softmax attention in the same block layout."""

DIM, HEADS = 256, 8
SIDES = (14, 28, 56, 112)
"""Sides of square token maps: 196 to 12,544 tokens."""


def mmdet_backbone(name: str) -> nn.Module | None:
    """Build mmdet's Swin-T or PVT-T; None if mmdet is not installed."""
    try:
        from mmdet.models.backbones import PyramidVisionTransformer, SwinTransformer
    except ImportError:
        return None
    if name == 'Swin-T':
        return SwinTransformer(drop_path_rate=0.0)
    return PyramidVisionTransformer(num_layers=[2, 2, 2, 2], drop_path_rate=0.0)


def backbones(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure Pola-PVT-T and Pola-Swin-T with float32 weights, in float16 autocast on a GPU."""
    cases = [(cls, size) for size in SIZES[device] for cls in (PolaPVT, PolaSwin)]
    for cls, size in tqdm(cases, 'backbones'):
        batch = SIZES[device][size]
        image = torch.randn(batch, 3, *size, device=device)
        model = cls('tiny', drop_path_rate=0.0).to(device)
        others: dict[str, Any] = {'mmdet': mmdet_backbone('PVT-T' if cls is PolaPVT else 'Swin-T')}
        compiled = partial(torch.compile, dynamic=False)
        if size == (224, 224):  # the only one of timm's model
            swin = timm.create_model(
                'swin_tiny_patch4_window7_224', features_only=True, drop_path_rate=0.0
            ).to(device)
            others |= {'timm Swin-T': swin, 'compiled timm Swin-T': compiled(swin)}
        networks: dict[str, Any] = {'ours': model, 'compiled': compiled(model)}
        networks |= {
            name: network.to(device) for name, network in others.items() if network is not None
        }
        case = f'{cls.__name__} tiny, {size[0]}x{size[1]}, batch {batch}'
        yield {'case': case, **compare(case, networks, image, peers, repeats)}


def compare(
    case: str, networks: dict[str, Any], image: Tensor, peers: list[str], repeats: int
) -> Row:
    """Check that networks agree in float32, then compare times and, in training, memory, with AMP
    on a GPU.

    Args:
        networks: 'ours' and the peers by name. 'compiled' must agree with it, as does ours on the
            literal equations, which the peer 'literal' stands for.
    """
    runs: dict[str, Callable[[bool], Any]] = {
        name: partial(run_network, network, image)
        for name, network in networks.items()
        if name in ('ours', *peers)
    }
    if 'literal' in peers:
        runs['literal'] = literal_equations()(runs['ours'])
    passes = {
        name: {'inference': partial(run, False), 'training step': partial(run, True)}
        for name, run in runs.items()
    }
    same = ('ours', 'compiled', 'literal')
    check_parity(case, {name: runs['inference'] for name, runs in passes.items() if name in same})
    seconds, memory = measured(passes, image.device.type, repeats)
    row: Row = time_ratios(seconds, peers)
    if 'literal' in memory:
        row['peak memory, training step'] = ratio(memory, 'ours', 'literal')
    return {**row, 'seconds': seconds, 'bytes': memory}


def image_size(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure seconds and peak bytes of inference on one image; yields one row per size.

    The backbones of a pair have the same stages, widths and depths but compute different functions,
    so parity is not checked. Weights are float32, with float16 autocast on a GPU.
    """
    networks = {'Pola-PVT-T': PolaPVT('tiny'), 'Pola-Swin-T': PolaSwin('tiny')}
    siblings = {name: mmdet_backbone(name) for name in SIBLINGS.values() if 'mmdet' in peers}
    networks |= {name: network for name, network in siblings.items() if network is not None}
    for height, width in tqdm(IMAGE_SIZES, 'image sizes'):
        image = torch.randn(1, 3, height, width, device=device)
        passes = {
            name: {'inference': partial(run_network, network.to(device), image, False)}
            for name, network in networks.items()
        }
        by_pass, memory = measured(passes, device, repeats)
        seconds = by_pass['inference']
        row: Row = {'case': f'{height}x{width}', 'pixels': height * width}
        for ours, theirs in SIBLINGS.items():
            row[f'{theirs} over {ours}, time'] = ratio(seconds, theirs, ours)
            row[f'{ours} over {theirs}, peak memory'] = ratio(memory, ours, theirs)
        yield {**row, 'seconds': seconds, 'bytes': memory}


def zoo(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure inference of every named backbone on one image: milliseconds, and MB in addition to
    its weights.
    """
    from mmpola.apps.publish.flops import (
        count_macs,
    )  # needs MMEngine, which a machine for benchmarks.gpu lacks

    for name, (cls, arguments) in tqdm(ARCHITECTURES.items(), 'zoo'):
        model = cls(**arguments)
        row: Row = {
            'case': name,
            'parameters (M)': sum(p.numel() for p in model.parameters()) / 1e6,
            'GMACs, 224x224': count_macs(model.eval(), (224, 224))[''],
        }
        model.to(device)
        for height, width in ((224, 224), (800, 1333)):
            run = partial(
                run_network, model, torch.randn(1, 3, height, width, device=device), False
            )
            seconds, memory = measured({name: {'inference': run}}, device, repeats)
            size = f'{height}x{width}'
            row |= {
                f'ms, {size}': seconds['inference'][name] * 1e3,
                f'MB, {size}': memory[name] / 1e6,
            }
        yield row


def layer(device: str, repeats: int, peers: list[str]) -> Iterator[Row]:
    """Measure one layer on one sample of N tokens of 256 channels; yields one row per N and layer.

    'softmax' is torch.nn.MultiheadAttention, which computes another function. 'literal' is
    PolaAttention on the equations written literally, as the class that is commonly copied from the
    authors' code; the two must agree.
    """
    layers: dict[str, nn.Module] = {
        'PolaAttention': PolaAttention(DIM, HEADS),
        'PolaFormerPPAttention': PolaFormerPPAttention(DIM, HEADS),
        'PolaMultiheadAttention': PolaMultiheadAttention(DIM, HEADS, batch_first=True),
    }
    if 'softmax' in peers:
        layers['softmax'] = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    functions = {name: _function(module.to(device)) for name, module in layers.items()}
    if 'literal' in peers:
        layers['literal'] = layers['PolaAttention']
        functions['literal'] = literal_equations()(functions['PolaAttention'])
    for side in tqdm(SIDES, 'tokens'):
        x = torch.randn(1, side**2, DIM, device=device, requires_grad=True)
        grad = torch.randn(1, side**2, DIM, device=device)
        passes = {
            name: Call([x, *module.parameters()], (x, (side, side)), {}, grad).passes(
                functions[name]
            )
            for name, module in layers.items()
        }
        same = ('PolaAttention', 'literal')
        check_parity(
            f'{side**2} tokens',
            {name: partial(all_tensors, passes[name]) for name in same if name in passes},
        )
        seconds, memory = measured(passes, device, repeats)
        for name in (name for name in passes if name != 'softmax'):
            row: Row = {'case': f'{side} x {side}', 'tokens': side**2, 'layer': name}
            row |= {
                f'softmax, {what}': ratio(times, 'softmax', name) for what, times in seconds.items()
            }
            row['memory over softmax'] = ratio(memory, name, 'softmax')
            yield row | {'seconds': seconds, 'bytes': memory}


def _function(module: Any) -> Function:
    """Return a layer as a function of tokens and their grid."""
    if isinstance(module, nn.MultiheadAttention):  # PolaMultiheadAttention too
        return lambda x, grid: module(x, x, x, need_weights=False)[0]
    return module


def run_network(model: nn.Module, image: Tensor, training: bool) -> Any:
    """Run the forward pass and, in training, a backward pass from the sum of the maps' means;
    returns the maps.
    """
    model.train(training)
    with torch.set_grad_enabled(training):
        maps = model(image)
    if training:
        sum(x.mean() for x in maps).backward()
        model.zero_grad()
    return maps


@contextmanager
def literal_equations() -> Iterator[None]:
    """Replace the operators of the attention layers on maps by the literal equations."""

    def attend(*tensors: Any, backend: str, **named: Any) -> Tensor:
        return literal_attention(*tensors, **named)

    def mix(*arguments: Any, backend: str) -> Tensor:
        return literal_mix_and_gate(*arguments)

    with (
        mock.patch('mmpola.layers.attention.polarity_attention', attend),
        mock.patch('mmpola.layers.attention.mix_and_gate', mix),
    ):
        yield
