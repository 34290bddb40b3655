"""Inference and training steps on one image of up to 4,096 x 4,096 pixels: seconds and memory.

Each measurement has a process of its own. What does not fit into memory is not run: its peak is
then computed with tensors that have shapes but no data.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

from benchmarks.measure import extra_bytes, kilobytes, ratio, seconds_of
from benchmarks.networks import mmdet_backbone, run_network
from benchmarks.records import Row
from mmpola.backbones import PolaFormerPP, PolaPVT, PolaSwin

SIZES = [
    (224, 224),
    (512, 512),
    (800, 1344),
    (2048, 2048),
    (4096, 4096),
]
"""(height, width) in pixels; 800 x 1344 is COCO's usual test size, padded to a multiple of 32."""

SIBLINGS = {'Pola-PVT-T': 'PVT-T', 'Pola-Swin-T': 'Swin-T', 'PolaFormer++ b1': None}
"""Our backbone -> mmdet's with softmax attention in the same block layout, if there is one."""

REPEATED_PIXELS = 2**19
"""Larger images are measured once: their times are seconds, so noise matters less."""

SURELY_FITS = 3_000_000
"""Pixels up to which the memory of a run is not computed beforehand."""

ALLOCATOR_SHARE = 1.15
"""A process takes up to this multiple of the bytes of its tensors (seen: 1.0 to 1.14)."""

PASSES = ('inference', 'training step')


def image_size(device: str, repeats: int) -> Iterator[Row]:
    """Measure each backbone on one image; yield one row per size.

    The backbones of a pair have the same stages, widths and depths but compute different functions,
    so parity is not checked. Weights are float32, with float16 autocast on a GPU.
    """
    names = list(SIBLINGS)
    if mmdet_backbone('Swin-T') is not None:
        names += [sibling for sibling in SIBLINGS.values() if sibling]
    for height, width in tqdm(SIZES, 'image sizes'):
        pixels = height * width
        rounds = repeats if pixels <= REPEATED_PIXELS else 1
        seconds: dict[str, dict[str, float]] = {}
        memory: dict[str, dict[str, int]] = {}
        computed: dict[str, dict[str, int]] = {}
        for what in PASSES:
            seconds[what] = {}
            memory[what] = {}
            computed[what] = {}
            for name in names:
                arguments = (name, (height, width), what, device)
                if pixels > SURELY_FITS:
                    needed = needed_bytes(*arguments)
                    if needed * ALLOCATOR_SHARE > available_bytes(device):
                        computed[what][name] = needed
                        continue
                found = in_own_process(measure_once, *arguments, rounds)
                seconds[what][name], memory[what][name] = found
        row: Row = {'case': f'{height}x{width}', 'pixels': pixels}
        for ours, theirs in SIBLINGS.items():
            for what in PASSES:
                if theirs is None:
                    continue
                row[f'{theirs} over {ours}, time, {what}'] = ratio(seconds[what], theirs, ours)
                all_bytes = memory[what] | computed[what]
                row[f'{ours} over {theirs}, memory, {what}'] = ratio(all_bytes, ours, theirs)
        row |= {'seconds': seconds, 'bytes': memory, 'bytes that would be needed': computed}
        yield row


def in_own_process(function: Any, *arguments: Any) -> Any:
    """Call a function in a new process and return its result."""
    with ProcessPoolExecutor(1, get_context('spawn')) as pool:
        return pool.submit(function, *arguments).result()


def available_bytes(device: str) -> int:
    """Return how much memory is free on the device."""
    if device == 'cuda':
        return torch.cuda.mem_get_info()[0]
    return 1024 * kilobytes('/proc/meminfo', 'MemAvailable')


def build(name: str) -> nn.Module:
    """Build one of the compared backbones, without stochastic depth."""
    if name == 'Pola-PVT-T':
        return PolaPVT('tiny', drop_path_rate=0.0)
    if name == 'Pola-Swin-T':
        return PolaSwin('tiny', drop_path_rate=0.0)
    if name == 'PolaFormer++ b1':
        return PolaFormerPP('b1', drop_path_rate=0.0)
    sibling = mmdet_backbone(name)
    assert sibling is not None
    return sibling


def measure_once(
    name: str, size: tuple[int, int], what: str, device: str, rounds: int
) -> tuple[float, int]:
    """Return the median seconds and the peak bytes, without the weights, of a network's pass."""
    network = build(name).to(device)
    is_training = what == 'training step'
    with torch.autocast(device, torch.float16, enabled=device == 'cuda'):
        run_network(network, torch.randn(1, 3, 224, 224, device=device), is_training)  # warms up
        image = torch.randn(1, 3, *size, device=device)
        seconds: list[float] = []
        run = partial(run_network, network, image, is_training)
        memory = extra_bytes(lambda: seconds.append(seconds_of(run, device)), device)
        for _ in range(rounds - 1):
            seconds.append(seconds_of(run, device))
    return float(np.median(seconds)), memory


def needed_bytes(name: str, size: tuple[int, int], what: str, device: str) -> int:
    """Compute the peak of the bytes of all tensors of a network's pass, without running it."""
    network = build(name).to(device)
    with FakeTensorMode(allow_non_fake_inputs=True):
        image = torch.empty(1, 3, *size, device=device)
        with (
            torch.autocast(device, torch.float16, enabled=device == 'cuda'),
            PeakOfTensors() as tracked,
        ):
            run_network(network, image, what == 'training step')
    return tracked.peak


class PeakOfTensors(TorchDispatchMode):
    """Adds up the bytes of the tensors that are made and not yet freed; `peak` is their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_of_storage: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        outputs = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return outputs

    def _add(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata
        if address in self.bytes_of_storage:  # another view
            return
        self.bytes_of_storage[address] = storage.nbytes()
        weakref.finalize(storage, self.bytes_of_storage.pop, address)
        self.peak = max(self.peak, sum(self.bytes_of_storage.values()))
