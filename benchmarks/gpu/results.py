"""Part 3: what operators and networks reach on this GPU with the tuned launches."""

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
"""Names of measured cases of `polarity_attention`."""

PEER_CASES = 4
"""How many of these are compared with the peers, from the first on."""

COMPILED_PEER_CASES = 3
"""How many are compared with the compiled peer."""

MIX_AND_GATE_CASES = 2
"""How many are also those of `mix_and_gate`, and are measured in float32."""

RESULT_ROUNDS = 20
"""Rounds in which all variants of a measurement take turns."""

NETWORKS = {
    'Pola-Swin-T': ('pola_swin_tiny', 'swin_tiny_patch4_window7_224'),
    'Pola-PVT-T': ('pola_pvt_tiny', 'pvt_v2_b1'),
}
"""Our model, and the one of timm with similar cost and softmax attention, by timm's names.

timm has no PVT of the first version.
"""

MMDET_MEMORY = "peak memory over mmdet's, training step"

NETWORK_SIZES: dict[tuple[int, int], int] = {(800, 1344): 2, (224, 224): 64, (512, 512): 16}
"""Batch size by image size; 1344 is 1333 padded to a multiple of 32, as detectors pad it."""

COMPILED_SIZE = (800, 1344)
"""Image size at which networks are compared with themselves as `--compile` compiles them."""

DEPTHWISE_CASES = [
    Case('PolaFormer++ b2 stage 1, 224x224, batch 64', 'exp', 64, 56, 56, heads=7, dim=32),
    Case('PolaFormer++ b2 stage 3, 224x224, batch 64', 'exp', 64, 14, 14, heads=28, dim=32),
]
"""Tokens plus their 3 x 3 depth-wise convolution, as in the MLP of these stages.

H * D are its hidden channels.
"""

DRY_ATTENTION_CASE = Case('tiny', 'power', 1, 3, 6, 1, 16)
DRY_DEPTHWISE_CASE = Case('tiny', 'exp', 1, 3, 6, 1, 16)
DRY_NETWORKS = {'Pola-PVT-T': ('pola_pvt_tiny', 'pvt_v2_b0')}
DRY_SIZES: dict[tuple[int, int], int] = {(32, 32): 1}
DRY_ARCH = {
    'embed_dims': (16, 16, 16, 16),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 1, 1, 1),
    'mlp_ratios': (1, 1, 1, 1),
}


def results(session: Session) -> dict[str, Measure]:
    """Return the measurements by name, those that compile with inductor last."""
    case_of_name = {case.name: case for case in ATTENTION['cuda']}
    cases = [case_of_name[name] for name in ATTENTION_CASES]
    networks = NETWORKS
    sizes = NETWORK_SIZES
    depthwise = DEPTHWISE_CASES
    if session.dry_run:
        cases = [DRY_ATTENTION_CASE]
        networks = DRY_NETWORKS
        sizes = DRY_SIZES
        depthwise = [DRY_DEPTHWISE_CASE]

    items: dict[str, Measure] = {'copy': partial(copy_row, session)}
    for number, case in enumerate(cases):
        peers = []
        if number < PEER_CASES:
            peers = ['literal', ANOTHER_FUNCTION, PORT]
        items[f'attention, {case.name}'] = partial(operator_row, session, 'attention', case, peers)
    for case in cases[:MIX_AND_GATE_CASES]:
        items[f'mix_and_gate, {case.name}'] = partial(
            operator_row, session, 'mix_and_gate', case, ['literal']
        )
    for case in cases[:MIX_AND_GATE_CASES]:
        items[f'float32, without tf32, {case.name}'] = partial(
            kernel_row, session, 'attention', case, torch.float32
        )
    for case in depthwise:
        items[f'depth-wise, {case.name}'] = partial(depthwise_row, session, case)
    items['a new image size'] = partial(new_size_row, session)
    for size, batch in sizes.items():
        for model, names in networks.items():
            items[f'{model}, {size[0]}x{size[1]}'] = partial(
                network_row, session, model, names, size, batch
            )
    if session.dry_run:
        return items

    for model in networks:
        items[f'--compile, {model}'] = partial(
            compiled_row, session, model, COMPILED_SIZE, sizes[COMPILED_SIZE]
        )
    for case in cases[:COMPILED_PEER_CASES]:
        items[f'compiled, {case.name}'] = partial(
            operator_row, session, 'attention', case, ['compiled literal']
        )
    return items


def copy_row(session: Session) -> Row:
    """Measure the bandwidth of a copy, which other rows are compared with."""
    rounds = session.rounds(RESULT_ROUNDS)
    return {'bytes per second': copy_bandwidth(session.device.type, rounds)}


def operator_row(session: Session, operator: str, case: Case, peers: list[str]) -> Row:
    """Compare an operator's kernels with its peers, and measure each kernel of a training step."""
    bandwidth = session.results('results')['copy']['bytes per second']
    rounds = session.rounds(RESULT_ROUNDS)
    compared = measure_case(
        operator, case, session.device.type, rounds, peers, bandwidth, backend='triton'
    )
    row = kernel_row(session, operator, case, torch.float16)
    row['MB per tensor'] = case.elements * torch.float16.itemsize / 1e6
    row |= compared
    row['operator'] = operator
    return row


def kernel_row(session: Session, operator: str, case: Case, dtype: torch.dtype) -> Row:
    """Measure each kernel of a training step, and the token tensors' bytes, which it must move."""
    bandwidth = session.results('results')['copy']['bytes per second']
    with recorded() as launched:
        triton_step(operator, case, session.device.type, dtype)()
    launch_of_name = {}
    for number, launch in enumerate(launched, 1):
        launch_of_name[f'{number} {launch.kernel}'] = launch
    runs = {name: launch.run for name, launch in launch_of_name.items()}
    rounds = session.rounds(RESULT_ROUNDS)
    timings = interleaved_device_seconds(runs, session.device.type, rounds)
    kernels = {}
    for name, timing in timings.items():
        bytes_of_address = {}  # a tensor that is passed twice counts once
        for tensor in launch_of_name[name].tensors:
            if tensor.numel() == case.elements:
                bytes_of_address[tensor.data_ptr()] = tensor.nbytes
        moved = sum(bytes_of_address.values())
        kernels[name] = {
            'seconds': timing.seconds,
            'spread': timing.spread,
            'bytes': moved,
            'copy %': 100 * moved / bandwidth / timing.seconds,
        }
    dtype_name = str(dtype).removeprefix('torch.')
    return {'operator': f'{operator}, {dtype_name}', 'case': case.name, 'kernels': kernels}


def depthwise_row(session: Session, case: Case) -> Row:
    """Compare three ways to compute x + DWC(x): cuDNN, PyTorch's kernel, that of mix_and_gate.

    The last reads a gate of ones too, which a kernel without a gate would not.
    """
    device = session.device.type
    dtype = torch.float16
    grid = (case.rows, case.columns)
    channels = case.heads * case.dim
    token_shape = (case.batch, case.tokens, channels)
    x = torch.randn(token_shape, device=device, dtype=dtype, requires_grad=True)
    weight = torch.randn(channels, 1, 3, 3, device=device, dtype=dtype, requires_grad=True)
    bias = torch.randn(channels, device=device, dtype=dtype, requires_grad=True)
    ones = torch.ones_like(x)

    def by_cudnn() -> Tensor:
        return x + convolve_tokens(x, weight, bias, grid)

    def by_pytorch() -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return x + convolve_tokens(x, weight, bias, grid)

    def by_mix_and_gate() -> Tensor:
        heads = x.unflatten(-1, (case.heads, case.dim))
        return mix_and_gate(heads, heads, ones, weight, bias, grid, backend='triton')

    call = Call([x, weight, bias], (), {}, torch.randn_like(x))
    passes = {
        'cuDNN': call.passes(by_cudnn),
        'PyTorch': call.passes(by_pytorch),
        'mix_and_gate': call.passes(by_mix_and_gate),
    }
    row: Row = {'case': case.name}
    for what in ('forward', 'step'):
        runs = {name: runs_of_passes[what] for name, runs_of_passes in passes.items()}
        timings = interleaved_device_seconds(runs, device, session.rounds(RESULT_ROUNDS))
        for name, timing in timings.items():
            row[f'{name}, µs, {what}'] = 1e6 * timing.seconds
    return row


def new_size_row(session: Session) -> Row:
    """Count the binaries that a training step at another size adds; the interpreter has none."""
    binaries = []
    for rows in (5, 7):
        case = Case('', 'power', batch=1, rows=rows, columns=11, heads=1, dim=32)
        with recorded() as launched:
            for operator in OPERATORS:
                triton_step(operator, case, session.device.type, torch.float16)()
        binaries.append({id(launch.binary) for launch in launched})
    before, after = binaries
    return {'case': 'another image size', 'compiled kernels': len(after - before)}


def network_row(
    session: Session, model: str, names: tuple[str, str], size: tuple[int, int], batch: int
) -> Row:
    """Compare a network with itself on the literal equations, and with timm's and mmdet's.

    Inference and training steps are timed with AMP.

    Args:
        session: the run.
        model: its name in `SIBLINGS`.
        names: timm's names of the network and of timm's peer.
        size: height and width of the images.
        batch: number of images.
    """
    our_name, timm_name = names
    our_arguments: dict[str, Any] = {'backend': 'triton', 'drop_path_rate': 0.0}
    if session.dry_run:
        our_arguments['arch'] = DRY_ARCH
        our_arguments['attn_types'] = 'LSSS'  # the interpreter takes two seconds for a linear layer
    timm_arguments: dict[str, Any] = {}
    if timm_name.startswith('swin'):
        timm_arguments['img_size'] = size
    ours = timm.create_model(our_name, features_only=True, **our_arguments)
    theirs = timm.create_model(timm_name, features_only=True, **timm_arguments)
    networks = {'ours': ours.to(session.device), 'timm': theirs.to(session.device)}
    if not session.dry_run:
        sibling = mmdet_backbone(SIBLINGS[model])
        if sibling is not None:
            networks['mmdet'] = sibling.to(session.device)
    image = torch.randn(batch, 3, *size, device=session.device)
    case = f'{model}, {size[0]}x{size[1]}, batch {batch}'
    rounds = session.rounds(RESULT_ROUNDS)
    row = compare(case, networks, image, ['literal', 'timm', 'mmdet'], rounds)
    row[MMDET_MEMORY] = ratio(row['bytes'], 'ours', 'mmdet')
    return {'case': case, "timm's model": timm_name, **row}


def compiled_row(session: Session, model: str, size: tuple[int, int], batch: int) -> Row:
    """Compare a network with itself as `--compile` compiles it, with symbolic sizes."""
    torch.compiler.reset()
    name, _ = NETWORKS[model]
    network = timm.create_model(name, features_only=True, backend='triton', drop_path_rate=0.0)
    network = network.to(session.device)
    networks = {'ours': network, 'compiled': torch.compile(network, dynamic=True)}
    image = torch.randn(batch, 3, *size, device=session.device)
    case = f'{model}, {size[0]}x{size[1]}, batch {batch}'
    rounds = session.rounds(RESULT_ROUNDS)
    return {'case': case, **compare(case, networks, image, ['compiled'], rounds)}
