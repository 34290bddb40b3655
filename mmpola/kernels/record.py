"""Where the kernels of the backend `triton` are right and faster: the record of `mmpola gpu`.

`backend='auto'` follows it. A record belongs to a model of GPU, the versions of torch and triton,
and the source of the kernels: any other record is ignored.
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
from typing import Any

import torch

from mmpola.files import cache_folder
from mmpola.ops import triton as triton_backend
from mmpola.ops.inputs import AttentionInputs, MixAndGateInputs
from mmpola.ops.triton import block_of, product_precision

UNCHECKED = (
    'the fused kernels have not been checked on this GPU: `mmpola gpu` checks them and switches '
    'them on'
)

PADDED_HEAD_DIM = 40
"""The checked head dimension that does not fill its block of channels."""

MEASURED_TOKENS = (784, 16700)
"""Lengths at which the kernels are timed: 28 x 28 tokens, and stage 2 of an image of 800 x 1333."""

SHIPPED = Path(__file__).resolve().parent / 'records'
"""Records of GPUs on which we ran the check ourselves."""

_logged: set[str] = set()


def record_key(device: torch.device) -> dict[str, str]:
    """Return what a record of a GPU is valid for."""
    return {
        'gpu': torch.cuda.get_device_name(device),
        'torch': torch.__version__,
        'triton': importlib.metadata.version('triton'),
        'kernels': kernels_hash(),
    }


@cache
def kernels_hash() -> str:
    """Return a hash of the source of the kernels and their launches."""
    digest = hashlib.sha256()
    for path in sorted(Path(triton_backend.__file__).resolve().parent.glob('*.py')):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def record_path(key: dict[str, str], folder: Path | None = None) -> Path:
    """Return the file of a record, which may not exist; None: in the cache folder."""
    if folder is None:
        folder = cache_folder() / 'kernels'
    gpu = re.sub(r'[^\w.-]+', '-', key['gpu'])
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f'{gpu}-{digest}.json'


def read_record(key: dict[str, str]) -> list[dict[str, Any]] | None:
    """Return the rows of a GPU's record; None if there is none, or it is damaged."""
    for folder in (None, SHIPPED):
        try:
            content = json.loads(record_path(key, folder).read_text())
        except (OSError, ValueError, RecursionError):
            continue
        if not isinstance(content, dict) or content.get('key') != key:
            continue
        rows = content.get('rows')
        if isinstance(rows, list) and all(is_row(row) for row in rows):
            return rows
    return None


def is_row(row: Any) -> bool:
    """Whether a row of a record has every value that is read, of its type."""
    if not isinstance(row, dict):
        return False
    texts = (row.get('operator'), row.get('dtype'), row.get('failure'))
    if type(row.get('head_dim')) is not int or not all(isinstance(text, str) for text in texts):
        return False
    if row['failure']:
        return True  # kernels that are wrong are not timed
    speedup = row.get('speedup')
    if not isinstance(speedup, dict) or not speedup:
        return False
    return all(isinstance(ratio, (int, float)) for ratio in speedup.values())


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
    rows = rows_by_case(device)
    if rows is None:
        return UNCHECKED
    dtype_name = str(dtype).removeprefix('torch.')
    if operator != 'mix_and_gate' and dtype == torch.float32:
        dtype_name = float32_name(product_precision(dtype))
    dims = [block_of(dim)]
    if dim != dims[0]:
        dims.append(PADDED_HEAD_DIM)
    for checked in dims:
        row = rows.get((operator, checked, dtype_name))
        case = f'{operator}, {dtype_name}, D={checked}'
        if row is None:
            return f'{case}: not in the record of this GPU, see `mmpola gpu`'
        if row['failure']:
            return f'{case}: {row["failure"]}'
        if min(row['speedup'].values()) <= 1:
            return f'{case}: not faster than plain PyTorch on this GPU'
    return ''


def float32_name(precision: str) -> str:
    """Return the name of float32 in the record, by the precision of its products."""
    if precision == 'tf32':
        return 'float32 in tf32'
    return 'float32'


@cache
def rows_by_case(device: torch.device) -> dict[tuple[str, int, str], dict[str, Any]] | None:
    """Return the record's rows by operator, head dimension and dtype; None without a record."""
    rows = read_record(record_key(device))
    if rows is None:
        return None
    by_case = {}
    for row in rows:
        by_case[row['operator'], row['head_dim'], row['dtype']] = row
    return by_case


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
