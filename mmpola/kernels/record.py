"""Where the kernels of the backend `triton` are right and faster: the record of `mmpola gpu`.

`backend='auto'` follows it. A record belongs to a model of GPU, the versions of torch and triton,
and the source of the kernels: the name of its file says which.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import re
from functools import cache
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mmpola.files import cache_folder
from mmpola.ops import triton as triton_backend
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.triton import block_of, product_precision

Results = dict[str, dict[str, Any]]
"""Case as text -> {'failure': '' or what is wrong, 'speedup': {tokens: times as fast}}."""

UNCHECKED = (
    'the fused kernels have not been checked on this GPU: `mmpola gpu` checks them and switches '
    'them on'
)

PADDED_HEAD_DIM = 40
"""The checked head dimension that does not fill its block of channels."""

_logged: set[str] = set()


class Case(NamedTuple):
    """What is checked and timed by itself.

    Args:
        operator: 'power', 'exp', 'rotary' or 'mix_and_gate'.
        head_dim: D, channels of a head.
        dtype: of the tokens, such as 'float16', or 'float32 in tf32'.
    """

    operator: str
    head_dim: int
    dtype: str

    def __str__(self) -> str:
        return f'{self.operator}, {self.dtype}, D={self.head_dim}'


def record_path(device: torch.device) -> Path:
    """Return the file of the record of a GPU, which may not exist; its name says what it is for."""
    parts = [
        torch.cuda.get_device_name(device),
        f'torch-{torch.__version__}',
        f'triton-{importlib.metadata.version("triton")}',
        kernels_hash(),
    ]
    name = re.sub(r'[^\w.+-]+', '-', '-'.join(parts))
    return cache_folder() / 'kernels' / f'{name}.json'


@cache
def kernels_hash() -> str:
    """Return a hash of the source of the kernels and their launches."""
    digest = hashlib.sha256()
    for path in sorted(Path(triton_backend.__file__).resolve().parent.glob('*.py')):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def read_record(device: torch.device) -> Results:
    """Return the results of the record of a GPU; none without a record, or if it is damaged."""
    try:
        return dict(json.loads(record_path(device).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def write_record(device: torch.device, results: Results) -> None:
    """Replace the record of a GPU at once; `backend='auto'` follows it from now on."""
    path = record_path(device)
    partial = path.with_name(f'{path.name}.partial')
    partial.write_text(f'{json.dumps(results, indent=1)}\n')
    partial.replace(path)
    results_on.cache_clear()


@cache
def results_on(device: torch.device) -> Results:
    """Return the results of the record of a GPU, which is read once."""
    return read_record(device)


def distrusted(inputs: AttentionInputs | MixAndGateInputs) -> list[str]:
    """Return why `backend='auto'` does not use the kernels for inputs that they can serve."""
    if isinstance(inputs, AttentionInputs):
        x = inputs.q
        operator = inputs.feature_map.KIND
        if inputs.rotary is not None:
            operator = 'rotary'
    else:
        x = inputs.attended
        operator = 'mix_and_gate'
    reason = _distrusted(operator, index(x.shape[3]), x.dtype, x.device)
    if reason:
        return [reason]
    return []


@torch.compiler.assume_constant_result
def _distrusted(operator: str, dim: int, dtype: torch.dtype, device: torch.device) -> str:
    """Return why not, or ''; a constant for a compiler that traces the caller."""
    results = results_on(device)
    if not results:
        return UNCHECKED
    dtype_name = str(dtype).removeprefix('torch.')
    if operator != 'mix_and_gate' and dtype == torch.float32:
        dtype_name = float32_name()
    dims = [block_of(dim)]
    if dim != dims[0]:
        dims.append(PADDED_HEAD_DIM)
    for checked in dims:
        case = str(Case(operator, checked, dtype_name))
        if case not in results:
            return f'{case}: not in the record of this GPU, see `mmpola gpu`'
        result = results[case]
        if result['failure']:
            return f'{case}: {result["failure"]}'
        if min(result['speedup'].values()) <= 1:
            return f'{case}: not faster than plain PyTorch on this GPU'
    return ''


def float32_name() -> str:
    """Return the name of float32 in the record, by torch's switch for the precision of products."""
    if product_precision(torch.float32) == 'tf32':
        return 'float32 in tf32'
    return 'float32'


@torch.compiler.assume_constant_result
def log_once(message: str) -> None:
    """Log a warning unless the same message has been logged before."""
    if message not in _logged:
        _logged.add(message)
        logging.getLogger('mmpola').warning(message)


@torch.compiler.assume_constant_result
def too_low_capability(device: torch.device | None, lowest: tuple[int, int]) -> str:
    """Return a device's compute capability, as '7.5', if it is below `lowest`, else ''.

    The result is a string because compilers take a string for a constant, but not a tuple.

    Args:
        device: None for the device with the highest capability on this machine.
        lowest: capability that is needed.
    """
    major, minor = highest_capability(device)
    if (major, minor) >= lowest:
        return ''
    return f'{major}.{minor}'


@cache  # needed by every call of an operator, and asking the driver is slow
def highest_capability(device: torch.device | None) -> tuple[int, int]:
    """Return the compute capability of a device, or the highest of this machine's."""
    if device is not None:
        return torch.cuda.get_device_capability(device)
    return max(torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count()))
