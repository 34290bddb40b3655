"""Part 3: what the operators and whole networks reach on this GPU with the tuned launches, next to
their peers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import timm
import torch
from torch import Tensor

import mmpola.timm  # noqa: F401 - registers the models with timm
from benchmarks.cases import ATTENTION, Case
from benchmarks.gpu.launches import recorded
from benchmarks.gpu.session import Measure, Session
from benchmarks.measure import copy_bandwidth, interleaved_device_seconds, ratio
from benchmarks.networks import SIBLINGS, compare, mmdet_backbone
from benchmarks.operators import ANOTHER_FUNCTION, OPERATORS, PORT, Call, measure_case, triton_step
from benchmarks.records import Row
from mmpola.ops import mix_and_gate
from mmpola.ops.reference import convolve_tokens

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

NETWORKS = {
    'Pola-Swin-T': ('pola_swin_tiny', 'swin_tiny_patch4_window7_224'),
    'Pola-PVT-T': ('pola_pvt_tiny', 'pvt_v2_b1'),
}
"""Our model and the one of timm with similar cost and softmax attention (timm has no PVT of the
first version).
"""

MMDET_MEMORY = "peak memory over mmdet's, training step"

SIZES: dict[tuple[int, int], int] = {(800, 1344): 2, (224, 224): 64, (512, 512): 16}
"""Batch size by image size; 1344 is 1333 padded to a multiple of 32, as detectors pad it."""

COMPILED = (('Pola-Swin-T', (800, 1344)), ('Pola-PVT-T', (800, 1344)))
"""Networks that are compared with themselves as `--compile` compiles them."""

DEPTHWISE = (
    Case('PolaFormer++ b2 stage 1, 224x224, batch 64', 'exp', 64, 56, 56, heads=7, dim=32),
    Case('PolaFormer++ b2 stage 3, 224x224, batch 64', 'exp', 64, 14, 14, heads=28, dim=32),
)
"""Tokens plus their 3 x 3 depth-wise convolution, as in the MLP of these stages: H * D are its
hidden channels.
"""

DRY_NETWORKS = {'Pola-PVT-T': ('pola_pvt_tiny', 'pvt_v2_b0')}
DRY_SIZES: dict[tuple[int, int], int] = {(32, 32): 1}
DRY_ARCH = {
    'embed_dims': (16,) * 4,
    'depths': (1,) * 4,
    'num_heads': (1,) * 4,
    'mlp_ratios': (1,) * 4,
}


def results(session: Session) -> dict[str, Measure]:
    """Return the measurements by name, those that compile with inductor last."""
    cases = {case.name: case for case in ATTENTION['cuda']}
    attention, networks, sizes = [cases[name] for name in ATTENTION_CASES], NETWORKS, SIZES
    depthwise: tuple[Case, ...] = DEPTHWISE
    if session.dry_run:
        attention, networks, sizes = (
            [Case('tiny', 'power', 1, 3, 6, 1, 16)],
            DRY_NETWORKS,
            DRY_SIZES,
        )
        depthwise = (Case('tiny', 'exp', 1, 3, 6, 1, 16),)
    gates = attention[:2]
    items: dict[str, Measure] = {
        'copy': lambda: {
            'bytes per second': copy_bandwidth(session.device.type, session.rounds(ROUNDS))
        }
    }
    for case in attention:
        peers = ['literal', ANOTHER_FUNCTION, PORT] if case in attention[:PEER_CASES] else []
        items[f'attention, {case.name}'] = partial(operator_row, session, 'attention', case, peers)
    for case in gates:
        items[f'mix_and_gate, {case.name}'] = partial(
            operator_row, session, 'mix_and_gate', case, ['literal']
        )
    for case in gates:
        items[f'float32, without tf32, {case.name}'] = partial(
            kernel_row, session, 'attention', case, torch.float32
        )
    for case in depthwise:
        items[f'depth-wise, {case.name}'] = partial(depthwise_row, session, case)
    items['a new image size'] = partial(new_size, session)
    for size in sizes:
        for model, names in networks.items():
            items[f'{model}, {size[0]}x{size[1]}'] = partial(
                network_row, session, model, names, size, sizes[size]
            )
    for model, size in () if session.dry_run else COMPILED:
        items[f'--compile, {model}'] = partial(compiled_row, session, model, size, sizes[size])
    for case in [] if session.dry_run else attention[:3]:
        items[f'compiled, {case.name}'] = partial(
            operator_row, session, 'attention', case, ['compiled literal']
        )
    return items


def operator_row(session: Session, operator: str, case: Case, peers: list[str]) -> Row:
    """Compare the kernels of an operator with its peers, and measure each kernel of a training step
    alone.
    """
    device, bandwidth = session.device.type, session.results('results')['copy']['bytes per second']
    row = measure_case(operator, case, device, session.rounds(ROUNDS), peers, bandwidth, 'triton')
    kernels = kernel_row(session, operator, case, torch.float16)
    return {
        **kernels,
        'MB per tensor': case.elements * torch.float16.itemsize / 1e6,
        **row,
        'operator': operator,
    }


def kernel_row(session: Session, operator: str, case: Case, dtype: torch.dtype) -> Row:
    """Measure each kernel of a training step alone, and the bytes of its token tensors, which it
    must move.
    """
    device, bandwidth = session.device.type, session.results('results')['copy']['bytes per second']
    with recorded() as launched:
        triton_step(operator, case, device, dtype)()
    numbered = {f'{i} {x.kernel}': x for i, x in enumerate(launched, 1)}
    timings = interleaved_device_seconds(
        {name: x.run for name, x in numbered.items()}, device, session.rounds(ROUNDS)
    )
    kernels = {}
    for name, timing in timings.items():
        tokens = {
            x.data_ptr(): x.nbytes for x in numbered[name].tensors if x.numel() == case.elements
        }
        moved = sum(tokens.values())
        kernels[name] = {
            **timing._asdict(),
            'bytes': moved,
            'copy %': 100 * moved / bandwidth / timing.seconds,
        }
    return {
        'operator': f'{operator}, {str(dtype).removeprefix("torch.")}',
        'case': case.name,
        'kernels': kernels,
    }


def depthwise_row(session: Session, case: Case) -> Row:
    """Compare three ways to compute x + DWC(x): cuDNN's convolution, PyTorch's own, and the kernel
    of mix_and_gate.

    The last reads a gate of ones too, which a kernel without a gate would not.
    """
    device, dtype = session.device.type, torch.float16
    grid, channels = (case.rows, case.columns), case.heads * case.dim
    x = torch.randn(
        case.batch, case.tokens, channels, device=device, dtype=dtype, requires_grad=True
    )
    weight = torch.randn(channels, 1, 3, 3, device=device, dtype=dtype, requires_grad=True)
    bias = torch.randn(channels, device=device, dtype=dtype, requires_grad=True)
    ones = torch.ones_like(x)

    def cudnn() -> Tensor:
        return x + convolve_tokens(x, weight, bias, grid)

    def own() -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return cudnn()

    def kernel() -> Tensor:
        heads = x.unflatten(-1, (case.heads, case.dim))
        return mix_and_gate(heads, heads, ones, weight, bias, grid, backend='triton')

    call = Call([x, weight, bias], (), {}, torch.randn_like(x))
    passes = {
        name: call.passes(run)
        for name, run in {'cuDNN': cudnn, 'PyTorch': own, 'mix_and_gate': kernel}.items()
    }
    row: Row = {'case': case.name}
    for what in ('forward', 'step'):
        runs = {name: found[what] for name, found in passes.items()}
        timings = interleaved_device_seconds(runs, device, session.rounds(ROUNDS))
        for name, timing in timings.items():
            row[f'{name}, µs, {what}'] = 1e6 * timing.seconds
    return row


def new_size(session: Session) -> Row:
    """Count the binaries that a training step at another size adds; the interpreter has none."""
    binaries = []
    for rows in (5, 7):
        with recorded() as launched:
            for operator in OPERATORS:
                triton_step(
                    operator,
                    Case('', 'power', 1, rows, 11, 1, 32),
                    session.device.type,
                    torch.float16,
                )()
        binaries.append({id(x.binary) for x in launched})
    return {'case': 'another image size', 'compiled kernels': len(binaries[1] - binaries[0])}


def network_row(
    session: Session, model: str, names: tuple[str, str], size: tuple[int, int], batch: int
) -> Row:
    """Compare a network with itself on the literal equations and with timm's, in inference and
    training with AMP.
    """
    ours, theirs = names
    arch = {'arch': DRY_ARCH} if session.dry_run else {}
    arguments: dict[str, dict[str, Any]] = {
        ours: {'backend': 'triton', 'drop_path_rate': 0.0, **arch}
    }
    arguments[theirs] = {'img_size': size} if theirs.startswith('swin') else {}
    networks = {
        label: timm.create_model(name, features_only=True, **arguments[name]).to(session.device)
        for label, name in (('ours', ours), ('timm', theirs))
    }
    sibling = None if session.dry_run else mmdet_backbone(SIBLINGS[model])
    if sibling is not None:
        networks['mmdet'] = sibling.to(session.device)
    image = torch.randn(batch, 3, *size, device=session.device)
    case = f'{model}, {size[0]}x{size[1]}, batch {batch}'
    row = compare(case, networks, image, ['literal', 'timm', 'mmdet'], session.rounds(ROUNDS))
    row[MMDET_MEMORY] = ratio(row['bytes'], 'ours', 'mmdet')
    return {'case': case, "timm's model": theirs, **row}


def compiled_row(session: Session, model: str, size: tuple[int, int], batch: int) -> Row:
    """Compare a network with itself as `--compile` compiles it, with symbolic sizes, in inference
    and training.
    """
    torch.compiler.reset()
    name = NETWORKS[model][0]
    network = timm.create_model(name, features_only=True, backend='triton', drop_path_rate=0.0).to(
        session.device
    )
    networks = {'ours': network, 'compiled': torch.compile(network, dynamic=True)}
    image = torch.randn(batch, 3, *size, device=session.device)
    case = f'{model}, {size[0]}x{size[1]}, batch {batch}'
    return {'case': case, **compare(case, networks, image, ['compiled'], session.rounds(ROUNDS))}
