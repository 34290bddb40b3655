"""Part 3: what the operators and whole networks reach on this GPU with the tuned launches, next to their peers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import timm
import torch
from torch import nn

import mmpola.timm  # noqa: F401 - registers the models with timm
from benchmarks.cases import ATTENTION, Case
from benchmarks.gpu.launches import recorded
from benchmarks.gpu.session import Item, Session
from benchmarks.measure import copy_bandwidth, interleaved_device_seconds
from benchmarks.networks import compare
from benchmarks.operators import ANOTHER_FUNCTION, OPERATORS, PORT, Function, find_peers, measure_case, triton_passes
from benchmarks.records import Row

ATTENTION_CASES = (
    'Pola-Swin-T stage 1, 224x224, batch 64',
    'Pola-PVT-T stage 1, 800x1333, batch 2',
    'PolaFormer++ b2 stage 1, 800x1333, batch 2',
    'Pola-Swin-T stage 1, 512x512, batch 16',
    'Pola-PVT-T stage 1, 224x224, batch 64',
    'Pola-PVT-T stage 4, 224x224, batch 64',
)
PEER_CASES = 4
"""How many of them are compared with the peers; the first two are also those of `mix_and_gate`."""

ROUNDS = 20
"""In which all variants of a measurement run in turn."""

Size = tuple[int, int]

NETWORKS = {
    'Pola-Swin-T': ('pola_swin_tiny', 'swin_tiny_patch4_window7_224'),
    'Pola-PVT-T': ('pola_pvt_tiny', 'pvt_v2_b1'),
}
"""Our model and the one of timm with similar cost and softmax attention (timm has no PVT of the first version)."""

SIZES: dict[Size, int] = {(800, 1344): 2, (224, 224): 64, (512, 512): 16}
"""Batch size by image size; 1344 is 1333 padded to a multiple of 32, as detectors pad it."""

DRY_NETWORKS = {'Pola-PVT-T': ('pola_pvt_tiny', 'pvt_v2_b0')}
DRY_SIZES: dict[Size, int] = {(32, 32): 1}
DRY_ARCH = {'embed_dims': (16,) * 4, 'depths': (1,) * 4, 'num_heads': (1,) * 4, 'mlp_ratios': (1,) * 4}


def results(session: Session) -> Iterator[Item]:
    """Yield the measurements, those that compile with inductor last."""
    cases = {case.name: case for case in ATTENTION['cuda']}
    attention = [cases[name] for name in ATTENTION_CASES]
    gates = attention[:2]
    networks, sizes = NETWORKS, SIZES
    if session.dry_run:
        attention = gates = [Case('tiny', 'power', 1, 3, 6, 1, 16)]
        networks, sizes = DRY_NETWORKS, DRY_SIZES
    yield Item('copy', partial(_copy, session))
    for case in attention:
        names = ['literal', ANOTHER_FUNCTION, PORT] if case in attention[:PEER_CASES] else []
        yield Item(f'attention, {case.name}', partial(operator_row, session, 'attention', case, names))
    for case in gates:
        yield Item(f'mix_and_gate, {case.name}', partial(operator_row, session, 'mix_and_gate', case, ['literal']))
    for case in gates:
        measure = partial(kernel_row, session, 'attention', case, torch.float32)
        yield Item(f'float32, without tf32, {case.name}', measure)
    yield Item('a new image size', partial(new_size, session))
    for size, batch in sizes.items():
        for model in networks:
            yield Item(f'{model}, {size[0]}x{size[1]}', partial(network_row, session, model, size, batch))
    for case in [] if session.dry_run else attention[:3]:
        names = ['compiled literal']
        yield Item(f'compiled, {case.name}', partial(operator_row, session, 'attention', case, names))


def _copy(session: Session) -> Row:
    return {'bytes per second': copy_bandwidth(session.device.type, session.rounds(ROUNDS)['repeats'])}


def operator_row(session: Session, operator: str, case: Case, peers: list[str]) -> Row:
    """Compare the kernels of an operator with its peers, and measure each kernel of a training step alone."""
    device, bandwidth = session.device.type, session.results('results')['copy']['bytes per second']
    rounds = session.rounds(ROUNDS)
    ours: Function = partial(OPERATORS[operator][0], backend='triton')
    functions = {'ours': ours, **find_peers(operator, peers)}
    row = measure_case(operator, case, functions, device, rounds['repeats'], peers, bandwidth)
    kernels = kernel_row(session, operator, case, torch.float16)
    return {**kernels, 'MB per tensor': case.elements * torch.float16.itemsize / 1e6, **row, 'operator': operator}


def kernel_row(session: Session, operator: str, case: Case, dtype: torch.dtype) -> Row:
    """Measure each kernel of a training step alone."""
    device, bandwidth = session.device.type, session.results('results')['copy']['bytes per second']
    with recorded() as launched:
        triton_passes(operator, case, device, dtype)[1]()
    numbered = {f'{i} {x.kernel}': x for i, x in enumerate(launched, 1)}
    runs = {name: x.run for name, x in numbered.items()}
    timings = interleaved_device_seconds(runs, device, **session.rounds(ROUNDS))
    moved = {name: x.token_bytes(case.elements) for name, x in numbered.items()}
    kernels = {
        name: {**x._asdict(), 'bytes': moved[name], 'copy %': 100 * moved[name] / bandwidth / x.seconds}
        for name, x in timings.items()
    }
    return {'operator': f'{operator}, {str(dtype).removeprefix("torch.")}', 'case': case.name, 'kernels': kernels}


def new_size(session: Session) -> Row:
    """Count the binaries that a training step at another size adds; the interpreter has none."""
    binaries = []
    for rows in (5, 7):
        with recorded() as launched:
            for operator in OPERATORS:
                triton_passes(operator, Case('', 'power', 1, rows, 11, 1, 32), session.device.type, torch.float16)[1]()
        binaries.append({id(x.binary) for x in launched})
    return {'case': 'another image size', 'compiled kernels': len(binaries[1] - binaries[0])}


def _model(session: Session, name: str, size: Size) -> nn.Module:
    if name.startswith('pola'):
        arguments: dict[str, Any] = {'backend': 'triton', 'drop_path_rate': 0.0}
        arguments |= {'arch': DRY_ARCH} if session.dry_run else {}
    else:
        arguments = {'img_size': size} if name.startswith('swin') else {}
    return timm.create_model(name, features_only=True, **arguments).to(session.device)


def network_row(session: Session, model: str, size: Size, batch: int) -> Row:
    """Compare a network with itself on the literal equations and with timm's, in inference and training with AMP."""
    ours, theirs = (DRY_NETWORKS if session.dry_run else NETWORKS)[model]
    networks = {'ours': _model(session, ours, size), 'timm': _model(session, theirs, size)}
    image = torch.randn(batch, 3, *size, device=session.device)
    case = f'{model}, {size[0]}x{size[1]}, batch {batch}'
    return {
        'case': case,
        "timm's model": theirs,
        **compare(case, networks, image, ['literal', 'timm'], session.rounds(ROUNDS)),
    }
