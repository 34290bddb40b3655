"""Report whether this environment can run mmpola: versions, compiled operators, GPU, attention backends.

    python -m mmpola

Exit status 0 if everything needed works, else 1. Each failing line names its fix: `bash tools/install.sh` in a clone of
the repository, else pip commands. Packages that may be missing or broken are imported inside functions.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import NamedTuple


class Requirement(NamedTuple):
    """A distribution: its lowest supported version, the first that is too new, and the pip command that installs it.

    `fork` is a distribution of the same modules with its lowest supported version.
    """

    name: str
    lowest: str
    limit: str | None
    pip: str
    fork: tuple[str, str] | None = None


BUILD_MMCV = 'pip install "setuptools<82" wheel ninja psutil && pip install --no-build-isolation mmcv==2.1.0'
"""With build isolation, mmcv is silently installed without its operators."""

TORCH = 'pip install --upgrade torch torchvision'

NEEDED = (
    Requirement('torch', '2.6', None, TORCH),
    Requirement('torchvision', '0.21', None, TORCH),
    Requirement('timm', '1.0.21', None, 'pip install --upgrade timm'),
    Requirement('einops', '0', None, 'pip install einops'),
)

OPENMMLAB = (  # mmdet 3.3 and mmseg 1.2.2 refuse mmcv 2.2
    Requirement('mmengine', '0.10.0', '1.0.0', 'pip install mmengine==0.10.7', ('onedl-mmengine', '0.10.12')),
    Requirement('mmcv', '2.0.0', '2.2.0', BUILD_MMCV, ('onedl-mmcv', '2.3.6')),
    Requirement('mmdet', '3.3.0', '4.0.0', 'pip install mmdet==3.3.0', ('onedl-mmdetection', '3.5.1')),
    Requirement(
        'mmsegmentation',
        '1.2.2',
        '2.0.0',
        'pip install mmsegmentation==1.2.2 ftfy regex',
        ('onedl-mmsegmentation', '1.4.2'),
    ),
)

INSTALLER = 'bash tools/install.sh'


class Finding(NamedTuple):
    """One line of the report; `remedy` is the fix, empty if nothing is wrong."""

    what: str
    found: str
    remedy: str = ''


def findings(clone: bool) -> Iterator[Finding]:
    """Yield every line of the report, in the order in which the parts depend on each other.

    Args:
        clone: whether this is a clone of the repository, which needs OpenMMLab. For an installed package, which serves
            users of timm too, OpenMMLab is optional: its packages are checked as soon as one of them is installed.
    """

    openmmlab = [_installed(requirement) for requirement in OPENMMLAB]
    installer = INSTALLER if openmmlab == [*OPENMMLAB] else f'{INSTALLER} --forks'

    def remedy(pip: str) -> str:
        return installer if clone else pip

    yield Finding('Python', platform.python_version(), '' if sys.version_info >= (3, 10) else 'needs >= 3.10')
    for requirement in NEEDED:
        yield _package(requirement, remedy(requirement.pip))
    yield _importable('torchvision.ops', remedy(TORCH))
    if clone or any(_version(requirement.name) for requirement in openmmlab):
        for requirement in openmmlab:
            yield _package(requirement, remedy(requirement.pip))
        for module, requirement in zip(('mmcv.ops', 'mmdet.models', 'mmseg.models'), openmmlab[1:], strict=True):
            yield _importable(module, remedy(requirement.pip))
    else:
        yield Finding('OpenMMLab', 'not installed (optional; detection, segmentation and training need it)')
    yield from _hardware(remedy(TORCH))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _installed(requirement: Requirement) -> Requirement:
    """Return the rule for the fork if that is installed and the distribution itself is not."""
    if requirement.fork and not _version(requirement.name) and _version(requirement.fork[0]):
        name, lowest = requirement.fork
        return Requirement(name, lowest, None, f'pip install --upgrade {name}')
    return requirement


def _package(requirement: Requirement, remedy: str) -> Finding:
    name, lowest, limit, *_ = requirement
    upper = f', < {limit}' if limit else ''
    version, fix = _version(name), f'needs >= {lowest}{upper}: {remedy}'
    if version is None:
        return Finding(name, 'not installed', fix)
    fits = _numbers(version) >= _numbers(lowest) and (limit is None or _numbers(version) < _numbers(limit))
    return Finding(name, version, '' if fits else fix)


def _numbers(version: str) -> list[int]:
    """Convert '2.11.0+cu130' to [2, 11, 0]."""
    return [int(part) for part in version.split('+')[0].split('.') if part.isdigit()]


def _importable(module: str, remedy: str) -> Finding:
    try:
        import_module(module)
    except Exception as error:  # a binary built for another version raises any type
        return Finding(module, _first_line(error), remedy)
    return Finding(module, 'imports')


def _first_line(error: Exception) -> str:
    return ': '.join([type(error).__name__, *str(error).splitlines()[:1]])


def _hardware(remedy: str) -> Iterator[Finding]:
    """Yield the GPU and the attention backends, which need a torch that works."""
    try:
        import torch

        if torch.cuda.is_available():
            names = ', '.join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
            yield Finding('GPU', f'{names} (CUDA {torch.version.cuda})')
        else:
            yield Finding('GPU', 'none: training runs on the CPU')
    except Exception as error:
        yield Finding('GPU', f'unknown, torch does not work: {_first_line(error)}', remedy)
    try:
        from mmpola.ops import available_backends, unavailable_backends

        yield Finding('attention backends', ', '.join(available_backends()))
        for name, reasons in unavailable_backends().items():
            yield Finding(f'backend {name}', 'cannot run here: ' + '; '.join(reasons))
    except Exception as error:
        yield Finding('attention backends', f'mmpola.ops cannot be imported: {_first_line(error)}', remedy)


def main() -> int:
    print(f'interpreter: {sys.executable}')
    rows = list(findings(clone=Path(__file__).resolve().parents[1].joinpath('tools', 'install.sh').is_file()))
    width = max(len(row.what) for row in rows)
    for row in rows:
        mark = 'ok' if not row.remedy else '!!'
        print(f'{mark}  {row.what:<{width}}  {row.found}' + (f'  -> {row.remedy}' if row.remedy else ''))
    return int(any(row.remedy for row in rows))


if __name__ == '__main__':
    sys.exit(main())
