"""Says whether this environment can run mmpola: versions, mmcv's operators, GPU, attention backends.

    python -m mmpola

Exit status 0 if everything needed works, 1 otherwise; each line that is not well says what to do.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata

OPENMMLAB = {
    'mmengine': ('0.10.0', '1.0.0'),
    'mmcv': ('2.0.0', '2.2.0'),
    'mmdet': ('3.3.0', '4.0.0'),
    'mmsegmentation': ('1.2.2', '2.0.0'),
}
"""Distribution -> (first version that works, first that does not): mmdet 3.3 and mmseg 1.2.2 refuse mmcv 2.2."""

REMEDY = 'bash tools/install.sh'


@dataclass
class Finding:
    """One row of the table; `remedy` is empty where all is well."""

    what: str
    found: str
    remedy: str = ''


def findings() -> Iterator[Finding]:
    """Everything worth knowing, in the order in which things depend on each other."""
    python_ok = sys.version_info >= (3, 10)
    yield Finding('Python', platform.python_version(), '' if python_ok else 'needs 3.10 or newer')
    for name, lowest in (('torch', '2.1'), ('torchvision', '0.16'), ('timm', '1.0.21'), ('einops', '0')):
        yield _package(name, lowest)
    for name, (lowest, limit) in OPENMMLAB.items():
        yield _package(name, lowest, limit)
    yield _importable('torchvision.ops', 'torch and torchvision must be installed as a pair: ' + REMEDY)
    yield _importable('mmcv.ops', 'built without operators or for another torch: ' + REMEDY)
    yield _importable('mmdet.models', REMEDY)
    yield _importable('mmseg.models', REMEDY)
    yield _gpu()
    yield from _attention_backends()


def _package(name: str, lowest: str, limit: str | None = None) -> Finding:
    rule = f'>= {lowest}' + (f', < {limit}' if limit else '')
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, 'not installed', f'needs {rule}: {REMEDY}')
    fits = _numbers(lowest) <= _numbers(version) and (limit is None or _numbers(version) < _numbers(limit))
    return Finding(name, version, '' if fits else f'needs {rule}: {REMEDY}')


def _numbers(version: str) -> list[int]:
    """'2.11.0+cu130' -> [2, 11, 0]."""
    return [int(part) for part in version.split('+')[0].split('.') if part.isdigit()]


def _importable(module: str, remedy: str) -> Finding:
    try:
        import_module(module)
    except Exception as error:  # a broken binary raises what it likes
        return Finding(module, f'{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ""}', remedy)
    return Finding(module, 'imports')


def _gpu() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding('GPU', f'torch does not import: {error}', REMEDY)
    if not torch.cuda.is_available():
        return Finding('GPU', 'none: training runs on the CPU')
    names = ', '.join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Finding('GPU', f'{names} (CUDA {torch.version.cuda})')


def _attention_backends() -> Iterator[Finding]:
    try:
        from mmpola.ops import available_backends, unavailable_backends
    except ImportError as error:
        yield Finding('attention backends', f'mmpola does not import: {error}', REMEDY)
        return
    yield Finding('attention backends', ', '.join(available_backends()))
    for name, reasons in unavailable_backends().items():
        yield Finding(f'backend {name}', 'cannot run here: ' + '; '.join(reasons))


def main() -> int:
    print(f'interpreter: {sys.executable}')
    rows = list(findings())
    width = max(len(row.what) for row in rows)
    for row in rows:
        mark = 'ok' if not row.remedy else '!!'
        print(f'{mark}  {row.what:<{width}}  {row.found}' + (f'  -> {row.remedy}' if row.remedy else ''))
    return int(any(row.remedy for row in rows))


if __name__ == '__main__':
    sys.exit(main())
