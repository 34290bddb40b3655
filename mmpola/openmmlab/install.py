"""What is installed, and what this environment can be used for: the report of `mmpola`.

The report has packages, mmcv's operators, GPU and attention backends.

A package works if it imports; pip has checked its version. What may be missing or broken is
imported inside functions.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

REQUIREMENT = re.compile(r'([\w.-]+)([^;]*)(?:; extra == "(\w+)")?')
"""The name of a package, which versions of it, and the extra that requires it, if one does."""

WITH_OPENMMLAB = ('cv2', 'matplotlib', 'mmcv', 'mmseg', 'pycocotools', 'rich')
"""Modules that come with the extra `openmmlab`, where packages of other names bring them."""


def install_command(extra: str = '') -> str:
    """Return the command that installs mmpola with an extra."""
    if extra:
        return f"pip install -e '.[{extra}]'"
    return 'pip install -e .'


def versions_of(package: str) -> str:
    """Return which versions of a package mmpola or an extra requires: '==2.1.0'; '' for any."""
    _, versions = _requirement(package)
    return versions


def extra_of(module: str) -> str:
    """Return the extra that brings a module; '' if none does."""
    if module in WITH_OPENMMLAB:
        return 'openmmlab'
    extra, _ = _requirement(module)
    return extra


def _requirement(package: str) -> tuple[str, str]:
    """Return (extra, versions) of the first requirement of a package, both '' if there is none."""
    try:
        lines = requires('mmpola') or []
    except PackageNotFoundError:  # a checkout that is imported without having been installed
        lines = []
    for line in lines:
        found = REQUIREMENT.match(line)
        if found and found[1] == package:
            return found[3] or '', found[2]
    return '', ''


INSTALL = install_command()
INSTALL_OPENMMLAB = install_command('openmmlab')


class Package(NamedTuple):
    """A package that mmpola uses.

    Attributes:
        module: imports only if the package works.
        distributions: the names under which pip may have installed it.
        use: what needs it.
    """

    module: str
    distributions: tuple[str, ...]
    use: str


LIGHT = (
    Package('torch', ('torch',), 'everything'),
    Package('torchvision.ops', ('torchvision',), 'everything'),
    Package('timm', ('timm',), 'everything'),
    Package('einops', ('einops',), 'everything'),
)
MMCV = Package('mmcv.ops', ('mmcv', 'mmcv-lite', 'onedl-mmcv'), 'detection and segmentation')
OPENMMLAB = (
    Package('mmengine.runner', ('mmengine', 'onedl-mmengine'), 'training'),
    MMCV,
    Package('mmdet.models', ('mmdet', 'onedl-mmdetection'), 'detection'),
    Package('mmseg.models', ('mmsegmentation', 'onedl-mmsegmentation'), 'segmentation'),
)


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        what: a package, or a part of this machine.
        found: its version or state.
        remedy: the fix; '' if nothing is wrong.
        broken: whether something that is installed or needed fails without the fix.
    """

    what: str
    found: str
    remedy: str = ''
    broken: bool = False


def findings(needs_openmmlab: bool) -> Iterator[Finding]:
    """Yield the lines of the report.

    Args:
        needs_openmmlab: whether a package of OpenMMLab that is not installed is a fault.
    """
    yield Finding('Python', platform.python_version())
    for package in LIGHT:
        yield _state(package, INSTALL, needed=True)
    for package in OPENMMLAB:
        yield _state(package, INSTALL_OPENMMLAB, needs_openmmlab)
    problem = mmcv_problem()
    if problem is not None:
        yield problem
    if mmcv_folder() is not None:
        yield _operators()
    yield from _machine()


def _installed(names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the distributions that are installed, by name."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _state(package: Package, remedy: str, needed: bool) -> Finding:
    """Return which version of a package is installed, and whether it works."""
    what = package.distributions[0]
    installed = _installed(package.distributions)
    if not installed:
        return Finding(what, f'not installed ({package.use} needs it)', remedy, needed)
    found = ', '.join(f'{name} {number}' for name, number in installed.items())
    try:
        import_module(package.module)
    except Exception as error:  # a binary built for another version raises any type
        return Finding(what, f'{found}: {package.module}: {error!r}', remedy, broken=True)
    if package == MMCV:
        from mmcv.ops import get_compiler_version, get_compiling_cuda_version

        found += f'; compiler {get_compiler_version()}, CUDA {get_compiling_cuda_version()}'
    return Finding(what, found)


def _install_mmcv_lite() -> str:
    """Return the command that installs the tested mmcv-lite."""
    return f'pip install mmcv-lite{versions_of("mmcv-lite")}'


def mmcv_problem() -> Finding | None:
    """Return what is wrong with mmcv's operators, although it imports; None if nothing is."""
    installed = _installed(MMCV.distributions)
    if len(installed) > 1:
        found = f'{" and ".join(installed)} are the same module and overwrite each other'
        remedy = f'pip uninstall {" ".join(installed)}; {_install_mmcv_lite()}'
        return Finding('mmcv', found, remedy, broken=True)
    try:
        import torch

        if not torch.cuda.is_available():
            return None
        from mmcv.ops import get_compiling_cuda_version
    except Exception:  # `findings` says what does not import
        return None
    if get_compiling_cuda_version() == 'not available':
        found = 'compiled for a CPU only, but torch finds a GPU'
        remedy = f'pip uninstall mmcv; {_install_mmcv_lite()}'
        return Finding('mmcv', found, remedy, broken=True)
    return None


def mmcv_folder() -> Path | None:
    """Return the folder of the mmcv that Python imports; None if there is none."""
    spec = find_spec('mmcv')
    if spec is None or spec.origin is None:  # a folder that an uninstalled mmcv left has no origin
        return None
    return Path(spec.origin).parent


def mmcv_extension() -> Path | None:
    """Return the file in mmcv's folder that Python imports as `mmcv._ext`: compiled, or `_ext.py`.

    A program that has imported mmpola needs none, see `mmpola.openmmlab.mmcv.operators`.
    """
    folder = mmcv_folder()
    if folder is None:
        return None
    spec = PathFinder.find_spec('mmcv._ext', [str(folder)])
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin)


def _operators() -> Finding:
    """Return which programs find mmcv's operators."""
    what = 'mmcv operators'
    extension = mmcv_extension()
    if extension is not None:
        return Finding(what, f'found by every program ({extension.name})')
    return Finding(what, 'found after `import mmpola` only', 'mmpola operators')


def _machine() -> Iterator[Finding]:
    """Yield the GPU and the attention backends, which need a torch that works."""
    try:
        import torch

        from mmpola.ops import available_backends, unavailable_backends
    except Exception as error:
        yield Finding('attention', f'cannot be imported: {error!r}', INSTALL, broken=True)
        return
    gpu = 'none: training runs on the CPU'
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        names = ', '.join(torch.cuda.get_device_name(index) for index in range(count))
        gpu = f'{names} (CUDA {torch.version.cuda})'
    yield Finding('GPU', gpu)
    yield Finding('attention backends', ', '.join(available_backends()))
    for name, reasons in unavailable_backends().items():
        yield Finding(f'backend {name}', 'cannot run here: ' + '; '.join(reasons))


def report(needs_openmmlab: bool) -> int:
    """Print the lines of the report, and return the exit status.

    Args:
        needs_openmmlab: whether a package of OpenMMLab that is not installed is a fault.
    """
    print(f'interpreter: {sys.executable}')
    status = 0
    for finding in findings(needs_openmmlab):
        mark = 'ok'
        if finding.broken:
            mark = '!!'
            status = 1
        elif finding.remedy:
            mark = '--'
        line = f'{mark}  {finding.what:<18}  {finding.found}'
        if finding.remedy:
            line += f'  -> {finding.remedy}'
        print(line, flush=True)
    return status
