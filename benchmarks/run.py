"""Benchmarks, as ratios within one run; parity is checked first, and without it no number is printed.

Columns: times of the peer over ours (above 1 is faster), memory of ours over the peer's (below 1 is leaner).

    python -m benchmarks.run attention|backbones|scaling [--device cpu|cuda] [--repeats 20]

Writes benchmarks/results/DEVICE/NAME.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import timm
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from benchmarks.cases import ATTENTION, Case
from benchmarks.measure import interleaved_seconds, peak_bytes, relative_error
from benchmarks.peers import literal_attention
from mmpola.backbones import PolaPVT, PolaSwin
from mmpola.ops import PowerMap, polarity_attention

PARITY = 1e-4
"""Largest relative error between variants in float32."""

SIDES = (56, 112, 224, 512)
"""Of the square token maps that `scaling` measures: 3,136 to 262,144 tokens."""

Row = dict[str, Any]


class ParityError(Exception):
    """Variants do not compute the same function; their times would mean nothing."""


def attention(device: str, repeats: int) -> Iterator[Row]:
    """The operator against the equations written literally in eager PyTorch, forward and forward + backward."""
    for case in track(ATTENTION[device], 'attention', console=Console(stderr=True)):
        inputs, feature_map, grad = _attention_inputs(case, device)
        variants = {'ours': polarity_attention, 'literal': literal_attention}

        def forward(function: Any, inputs: list[Tensor] = inputs, feature_map: PowerMap = feature_map) -> Tensor:
            qkv, position = inputs[:2]
            return function(*qkv.unbind(2), feature_map, key_position=position)

        def step(function: Any, inputs: list[Tensor] = inputs, grad: Tensor = grad) -> tuple[Tensor, ...]:
            return torch.autograd.grad(forward(function), inputs, grad)

        def inference(function: Any) -> Tensor:
            with torch.no_grad():
                return forward(function)

        for name, (ours, literal) in {
            'output': [inference(f) for f in variants.values()],
            **{f'gradient {i}': pair for i, pair in enumerate(zip(*(step(f) for f in variants.values()), strict=True))},
        }.items():
            error = relative_error(ours, literal)
            if not error < PARITY:
                raise ParityError(f'{case.name}: {name} differs by {error:.1e}')
        seconds = {
            'forward': interleaved_seconds({n: lambda f=f: inference(f) for n, f in variants.items()}, device, repeats),
            'step': interleaved_seconds({n: lambda f=f: step(f) for n, f in variants.items()}, device, repeats),
        }
        memory = {name: peak_bytes(lambda f=f: step(f), device) for name, f in variants.items()}
        yield {
            'case': case.name,
            'tokens': case.tokens,
            'forward': seconds['forward']['literal'] / seconds['forward']['ours'],
            'forward + backward': seconds['step']['literal'] / seconds['step']['ours'],
            'peak memory': memory['ours'] / memory['literal'],
            'seconds': seconds,
            'bytes': memory,
        }


def _attention_inputs(case: Case, device: str) -> tuple[list[Tensor], PowerMap, Tensor]:
    shape = (case.batch, case.tokens, case.heads, case.dim)
    packed = torch.randn(case.batch, case.tokens, 3, case.heads, case.dim, device=device, requires_grad=True)
    position = torch.randn(*shape[1:], device=device, requires_grad=True)
    exponent = (1 + 4 * torch.rand(case.heads, case.dim, device=device)).requires_grad_()
    scale = (0.5 + torch.rand(case.heads, case.dim, device=device)).requires_grad_()
    return [packed, position, exponent, scale], PowerMap(exponent, scale), torch.randn(shape, device=device)


def backbones(device: str, repeats: int) -> Iterator[Row]:
    """Inference at 224 of whole backbones: with our operator, with the literal equations, and timm's Swin-T."""
    batch = 8 if device == 'cpu' else 64
    image = torch.randn(batch, 3, 224, 224, device=device)
    swin_t = timm.create_model('swin_tiny_patch4_window7_224', features_only=True).to(device).eval()
    for cls in (PolaPVT, PolaSwin):
        model = cls('tiny').to(device).eval()

        def ours(model: torch.nn.Module = model) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return model(image)

        def literal(model: torch.nn.Module = model) -> tuple[Tensor, ...]:
            def attend(*tensors: Any, backend: str, **named: Any) -> Tensor:
                return literal_attention(*tensors, **named)

            with torch.no_grad(), mock.patch('mmpola.layers.pola_attention.polarity_attention', attend):
                return model(image)

        def timm_swin() -> list[Tensor]:
            with torch.no_grad():
                return swin_t(image)

        for index, (a, b) in enumerate(zip(ours(), literal(), strict=True)):
            error = relative_error(a, b)
            if not error < PARITY:
                raise ParityError(f'{cls.__name__}: map {index} differs by {error:.1e}')
        variants = {'ours': ours, 'literal': literal, 'timm Swin-T': timm_swin}
        seconds = interleaved_seconds(variants, device, repeats)
        memory = {name: peak_bytes(run, device) for name, run in variants.items()}
        yield {
            'case': f'{cls.__name__} tiny, 224x224, batch {batch}',
            'over literal': seconds['literal'] / seconds['ours'],
            'over timm Swin-T': seconds['timm Swin-T'] / seconds['ours'],
            'peak memory': memory['ours'] / memory['literal'],
            'seconds': seconds,
            'bytes': memory,
        }


def scaling(device: str, repeats: int) -> Iterator[Row]:
    """Seconds per token of the operator, forward + backward, from 3,136 to 262,144 tokens; linear means flat."""
    runs, tokens_of = {}, {}
    for side in SIDES:
        case = Case('one sequence', 1, f'{side}x{side} tokens', 1, side, side, heads=2, dim=32)
        inputs, feature_map, grad = _attention_inputs(case, device)

        def step(
            inputs: list[Tensor] = inputs, feature_map: PowerMap = feature_map, grad: Tensor = grad
        ) -> tuple[Tensor, ...]:
            output = polarity_attention(*inputs[0].unbind(2), feature_map, key_position=inputs[1])
            return torch.autograd.grad(output, inputs, grad)

        runs[case.name], tokens_of[case.name] = step, case.tokens
    seconds = interleaved_seconds(runs, device, repeats)
    per_token = {name: value / tokens_of[name] for name, value in seconds.items()}
    shortest = per_token[next(iter(runs))]
    for name, value in per_token.items():
        yield {
            'case': name,
            'tokens': tokens_of[name],
            'cost per token over the shortest': value / shortest,
            'seconds': {'step': seconds[name]},
        }


SUITES = {'attention': attention, 'backbones': backbones, 'scaling': scaling}


def main() -> int:
    parser = argparse.ArgumentParser(description='Measure ratios against peers in one run')
    parser.add_argument('suite', choices=SUITES)
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--repeats', type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    try:
        rows = list(SUITES[args.suite](args.device, args.repeats))
    except ParityError as error:
        print(f'no parity, no numbers: {error}', file=sys.stderr)
        return 1
    machine = torch.cuda.get_device_name() if args.device == 'cuda' else f'cpu-{torch.get_num_threads()}-threads'
    record = {
        'machine': machine,
        'torch': torch.__version__,
        'python': platform.python_version(),
        'repeats': args.repeats,
        'rows': rows,
    }
    path = Path(__file__).parent / 'results' / machine.replace(' ', '-') / f'{args.suite}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + '\n')
    columns = [key for key, value in rows[0].items() if not isinstance(value, dict)]
    table = Table(title=f'{args.suite} on {machine}')
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f'{row[c]:.2f}' if isinstance(row[c], float) else str(row[c]) for c in columns))
    Console(width=140).print(table)
    print(f'written to {path}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
