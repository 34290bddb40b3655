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
from benchmarks.measure import (
    Run,
    check_parity,
    copy_bandwidth,
    graphed,
    interleaved_device_seconds,
    interleaved_seconds,
    peak_bytes,
    time_ratios,
)
from benchmarks.networks import run_literally, run_network
from benchmarks.operators import (
    ANOTHER_FUNCTION,
    FLOOR,
    OPERATORS,
    PORT,
    Function,
    measure_case,
    triton_passes,
)
from benchmarks.peers import literal_attention, published_port, softmax_attention
from benchmarks.records import Row
from mmpola.ops import polarity_attention

ATTENTION_CASES = (
    'Pola-Swin-T stage 1, 224x224, batch 64',
    'Pola-PVT-T stage 1, 800x1333, batch 2',
    'PolaFormer++ b2 stage 1, 800x1333, batch 2',
    'Pola-Swin-T stage 1, 512x512, batch 16',
    'Pola-PVT-T stage 1, 224x224, batch 64',
    'Pola-PVT-T stage 4, 224x224, batch 64',
)
MIX_AND_GATE_CASES = ATTENTION_CASES[:2]
PEER_CASES = ATTENTION_CASES[:4]

HOST_BOUND = 1.25
"""A call is host-bound if it takes this many times as long as its replay from a CUDA graph, which needs no host."""

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
    attention, gates, peers = ([cases[n] for n in names] for names in (ATTENTION_CASES, MIX_AND_GATE_CASES, PEER_CASES))
    networks, sizes = NETWORKS, SIZES
    if session.dry_run:
        attention = gates = peers = [Case('tiny', 'power', 1, 3, 6, 1, 16)]
        networks, sizes = DRY_NETWORKS, DRY_SIZES
    yield Item('copy', partial(_copy, session))
    for case in attention:
        yield Item(f'attention, {case.name}', partial(device_row, session, 'attention', case))
    for case in gates:
        yield Item(f'mix_and_gate, {case.name}', partial(device_row, session, 'mix_and_gate', case))
    yield Item('a new image size', partial(new_size, session))
    for case in peers:
        yield Item(f'peers, {case.name}', partial(_peers, session, case, ['literal', ANOTHER_FUNCTION, PORT]))
    for size in sizes:
        for model in networks:
            yield Item(f'{model}, {size[0]}x{size[1]}', partial(network_row, session, model, size, sizes[size]))
    if not session.dry_run:
        for case in peers[:3]:
            yield Item(f'compiled, {case.name}', partial(_peers, session, case, ['compiled literal']))
    size = min(sizes)
    for model in networks:
        yield Item(f'variants, {model}', partial(variants_row, session, model, size, sizes[size]))


def _copy(session: Session) -> Row:
    return {'bytes per second': copy_bandwidth(session.device.type, session.rounds(ROUNDS)['repeats'])}


def device_row(session: Session, operator: str, case: Case) -> Row:
    """Measure each kernel of a training step alone, and the operator with and without its host time."""
    device, bandwidth = session.device.type, session.results('results')['copy']['bytes per second']
    rounds, size = session.rounds(ROUNDS), case.elements * torch.float16.itemsize
    passes = dict(zip(('forward', 'step'), triton_passes(operator, case, device, torch.float16), strict=True))
    with recorded() as launched:
        passes['step']()
    numbered = {f'{i} {x.kernel}': x for i, x in enumerate(launched, 1)}
    kernels = {}
    timings = interleaved_device_seconds({name: x.run for name, x in numbered.items()}, device, **rounds)
    for name, timing in timings.items():
        moved = numbered[name].token_bytes(case.elements)
        kernels[name] = {**timing._asdict(), 'bytes': moved, 'copy %': 100 * moved / bandwidth / timing.seconds}
    replays = {name: graphed(run, device) for name, run in passes.items()}
    alone = interleaved_device_seconds(replays, device, **rounds)
    eager = interleaved_seconds(passes, device, **rounds)
    row: Row = {'operator': operator, 'case': case.name, 'MB per tensor': size / 1e6}
    for name, tensors in zip(passes, FLOOR, strict=True):
        row[f'copy %, {name}'] = 100 * tensors * size / bandwidth / alone[name].seconds
        row[f'host-bound, {name}'] = 'yes' if eager[name] > HOST_BOUND * alone[name].seconds else 'no'
    seconds = {name: {'graph': alone[name].seconds, 'eager': eager[name]} for name in passes}
    return {**row, 'seconds': seconds, 'kernels': kernels}


def new_size(session: Session) -> Row:
    """Count the binaries that a training step at another size adds; the interpreter has none."""
    binaries = []
    for rows in (5, 7):
        with recorded() as launched:
            for operator in OPERATORS:
                triton_passes(operator, Case('', 'power', 1, rows, 11, 1, 32), session.device.type, torch.float16)[1]()
        binaries.append({id(x.binary) for x in launched})
    return {'case': 'another image size', 'compiled kernels': len(binaries[1] - binaries[0])}


def _peers(session: Session, case: Case, peers: list[str]) -> Row:
    every: dict[str, Function | None] = {
        'ours': partial(polarity_attention, backend='triton'),
        'literal': literal_attention,
        'compiled literal': torch.compile(literal_attention, dynamic=False),
        ANOTHER_FUNCTION: softmax_attention,
        PORT: published_port(),
    }
    functions = {name: f for name, f in every.items() if name in ('ours', *peers) and f is not None}
    bandwidth = session.results('results')['copy']['bytes per second']
    device, repeats = session.device.type, session.rounds(ROUNDS)['repeats']
    return measure_case('attention', case, functions, device, repeats, peers, bandwidth)


def _model(session: Session, name: str, size: Size) -> nn.Module:
    if name.startswith('pola'):
        arguments: dict[str, Any] = {'backend': 'triton', 'drop_path_rate': 0.0}
        arguments |= {'arch': DRY_ARCH} if session.dry_run else {}
    else:
        arguments = {'img_size': size} if name.startswith('swin') else {}
    return timm.create_model(name, features_only=True, **arguments).to(session.device)


def network_row(session: Session, model: str, size: Size, batch: int) -> Row:
    """Compare a network with itself on the literal equations and with timm's, in inference and training with AMP."""
    device, (ours, theirs) = session.device.type, (DRY_NETWORKS if session.dry_run else NETWORKS)[model]
    image = torch.randn(batch, 3, *size, device=device)
    network = _model(session, ours, size)
    runs = {'ours': partial(run_network, network, image), 'literal': partial(run_literally, network, image)}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        check_parity(model, {name: run(False) for name, run in runs.items()})
    runs[theirs] = partial(run_network, _model(session, theirs, size), image)
    with torch.autocast(device, torch.float16, enabled=device == 'cuda'):
        seconds = {
            what: interleaved_seconds(
                {n: partial(run, training) for n, run in runs.items()}, device, **session.rounds(ROUNDS)
            )
            for what, training in (('inference', False), ('training step', True))
        }
        memory = {name: peak_bytes(partial(run, True), device) for name, run in runs.items()}
    ratios = {name.replace(theirs, 'timm'): x for name, x in time_ratios(seconds, ['literal', theirs]).items()}
    row: Row = {'case': f'{model}, {size[0]}x{size[1]}, batch {batch}', "timm's model": theirs, **ratios}
    for name, peer in (('literal', 'literal'), ('timm', theirs)):
        row[f'peak memory over {name}'] = memory['ours'] / memory[peer] if memory[peer] else 'too small'
    return {**row, 'seconds': seconds, 'bytes': memory}


def variants_row(session: Session, model: str, size: Size, batch: int) -> Row:
    """Compare a network's inference on one image and on a batch: eager, from a CUDA graph, and compiled."""
    device, (ours, _) = session.device.type, (DRY_NETWORKS if session.dry_run else NETWORKS)[model]
    network = _model(session, ours, size)
    backend = 'eager' if session.dry_run else 'inductor'
    row: Row = {'case': f'{model}, {size[0]}x{size[1]}, inference'}
    seconds = {}
    for images in sorted({1, batch}):
        image = torch.randn(images, 3, *size, device=device)
        compiled: Any = torch.compile(network, dynamic=False, backend=backend)
        with torch.autocast(device, torch.float16, enabled=device == 'cuda', cache_enabled=False):
            eager = partial(run_network, network, image, False)
            runs: dict[str, Run] = {
                'eager': eager,
                'graph': graphed(eager, device),
                'compiled': partial(run_network, compiled, image, False),
            }
            found = seconds[f'batch {images}'] = interleaved_seconds(runs, device, **session.rounds(ROUNDS))
        for name in ('graph', 'compiled'):
            row[f'eager over {name}, batch {images}'] = found['eager'] / found[name]
    return {**row, 'seconds': seconds}
