"""Compare backbones and layers with other implementations; measure every named backbone."""

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
from benchmarks.operators import Call, all_tensors
from benchmarks.peers import literal_attention, literal_mix_and_gate
from benchmarks.records import Row
from mmpola import PolaAttention, PolaFormerPPAttention, PolaMultiheadAttention
from mmpola.backbones import PolaPVT, PolaSwin, named_backbone
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.zoo import ARCHITECTURES

SIZES = {'cuda': {(224, 224): 64, (800, 1333): 2}, 'cpu': {(224, 224): 8}}
"""Device -> batch size by image size. Training steps at 800 x 1333 take minutes each on a CPU."""

DIM = 256
HEADS = 8
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


def backbones(device: str, repeats: int) -> Iterator[Row]:
    """Compare Pola-PVT-T and Pola-Swin-T with themselves on the literal equations, and with others.

    Weights are float32, with float16 autocast on a GPU. The literal equations must agree with ours.
    """
    cases = []
    for size, batch in SIZES[device].items():
        cases.append((PolaPVT, 'PVT-T', size, batch))
        cases.append((PolaSwin, 'Swin-T', size, batch))
    for backbone_class, sibling_name, size, batch in tqdm(cases, 'backbones'):
        height, width = size
        image = torch.randn(batch, 3, height, width, device=device)
        networks = {'ours': backbone_class('tiny', drop_path_rate=0.0)}
        sibling = mmdet_backbone(sibling_name)
        if sibling is not None:
            networks['mmdet'] = sibling
        if size == (224, 224):  # the only size of timm's model
            networks['timm Swin-T'] = timm.create_model(
                'swin_tiny_patch4_window7_224', features_only=True, drop_path_rate=0.0
            )
        runs: dict[str, Callable[[bool], Any]] = {}
        for name, network in networks.items():
            runs[name] = partial(run_network, network.to(device), image)
        runs['literal'] = on_literal_equations(runs['ours'])

        case = f'{backbone_class.__name__} tiny, {height}x{width}, batch {batch}'
        check_parity(case, {name: partial(runs[name], False) for name in ('ours', 'literal')})
        passes = {}
        for name, run in runs.items():
            passes[name] = {'inference': partial(run, False), 'training step': partial(run, True)}
        seconds, memory = measured(passes, device, repeats)
        row: Row = {'case': case, **time_ratios(seconds, ['literal', 'mmdet', 'timm Swin-T'])}
        row['peak memory, training step'] = ratio(memory, 'ours', 'literal')
        row['seconds'] = seconds
        row['bytes'] = memory
        yield row


def zoo(device: str, repeats: int) -> Iterator[Row]:
    """Measure inference of every named backbone on one image: milliseconds, and MB.

    The MB do not include the weights.
    """
    # It needs MMEngine, which a machine that runs only benchmarks.gpu may lack.
    from mmpola.openmmlab.export.flops import count_macs

    for name in tqdm(ARCHITECTURES, 'zoo'):
        backbone_class, arguments = named_backbone(name)
        model = backbone_class(**arguments)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        row: Row = {
            'case': name,
            'parameters (M)': parameters / 1e6,
            'GMACs, 224x224': count_macs(model.eval(), (224, 224)) / 1e9,
        }
        model.to(device)
        for height, width in ((224, 224), (800, 1333)):
            image = torch.randn(1, 3, height, width, device=device)
            run = partial(run_network, model, image, False)
            seconds, memory = measured({name: {'inference': run}}, device, repeats)
            row[f'ms, {height}x{width}'] = seconds['inference'][name] * 1e3
            row[f'MB, {height}x{width}'] = memory[name] / 1e6
        yield row


def layer(device: str, repeats: int) -> Iterator[Row]:
    """Measure one layer on one sample of N tokens of 256 channels; yield one row per N and layer.

    'softmax' is torch.nn.MultiheadAttention, which computes another function. 'literal' is
    PolaAttention on the equations written literally, as the class that is commonly copied from the
    authors' code; the two must agree.
    """
    layers: dict[str, nn.Module] = {
        'PolaAttention': PolaAttention(DIM, HEADS),
        'PolaFormerPPAttention': PolaFormerPPAttention(DIM, HEADS),
        'PolaMultiheadAttention': PolaMultiheadAttention(DIM, HEADS, batch_first=True),
        'softmax': nn.MultiheadAttention(DIM, HEADS, batch_first=True),
    }
    functions: dict[str, Callable[..., Tensor]] = {}
    for name, module in layers.items():
        functions[name] = partial(run_layer, module.to(device))
    layers['literal'] = layers['PolaAttention']
    functions['literal'] = on_literal_equations(functions['PolaAttention'])

    for side in tqdm(SIDES, 'tokens'):
        tokens = side**2
        x = torch.randn(1, tokens, DIM, device=device, requires_grad=True)
        grad = torch.randn(1, tokens, DIM, device=device)
        passes = {}
        compared = {}
        for name, module in layers.items():
            call = Call([x, *module.parameters()], (x, (side, side)), {}, grad)
            passes[name] = call.passes(functions[name])
            if name in ('PolaAttention', 'literal'):
                compared[name] = partial(all_tensors, passes[name])
        check_parity(f'{tokens} tokens', compared)
        seconds, memory = measured(passes, device, repeats)
        for name in layers:
            if name == 'softmax':
                continue
            row: Row = {'case': f'{side} x {side}', 'tokens': tokens, 'layer': name}
            for what, times in seconds.items():
                row[f'softmax, {what}'] = ratio(times, 'softmax', name)
            row['memory over softmax'] = ratio(memory, name, 'softmax')
            row['seconds'] = seconds
            row['bytes'] = memory
            yield row


def run_layer(module: nn.Module, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Run self-attention of tokens x [B, N, C], which form a grid."""
    output: Tensor
    if isinstance(module, nn.MultiheadAttention):  # PolaMultiheadAttention too
        output, _ = module(x, x, x, need_weights=False)
    else:
        output = module(x, grid)
    return output


def run_network(model: nn.Module, image: Tensor, training: bool) -> Any:
    """Run the forward pass and, in training, a backward pass from the sum of the maps' means.

    Returns:
        The maps.
    """
    model.train(training)
    with torch.set_grad_enabled(training):
        maps = model(image)
    if training:
        sum(x.mean() for x in maps).backward()
        model.zero_grad()
    return maps


def on_literal_equations(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `run` while the layers compute the literal equations."""

    def literal_run(*arguments: Any) -> Any:
        with literal_equations():
            return run(*arguments)

    return literal_run


@contextmanager
def literal_equations() -> Iterator[None]:
    """Replace the operators of the attention layers on maps by the literal equations."""

    def attend(inputs: AttentionInputs, backend: str) -> Tensor:
        return literal_attention(
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.feature_map,
            key_position=inputs.key_position,
            rotary=inputs.rotary,
        )

    def mix(inputs: MixAndGateInputs, backend: str) -> Tensor:
        rows, columns = inputs.grid
        return literal_mix_and_gate(
            inputs.attended, inputs.values, inputs.gate, inputs.weight, inputs.bias, (rows, columns)
        )

    with (
        mock.patch('mmpola.layers.attention.run_attention', attend),
        mock.patch('mmpola.layers.attention.run_mix_and_gate', mix),
    ):
        yield
