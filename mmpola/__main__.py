"""Report what this environment can be used for: versions, operators, GPU, attention backends.

    mmpola [--openmmlab]           or: python -m mmpola [--openmmlab]
    mmpola COMMAND ARGUMENTS…      or: torchrun … -m mmpola COMMAND …

The second form runs a script, see mmpola/commands.py.

Layers and models for timm need torch, torchvision, timm and einops. Training also needs MMEngine;
detection and segmentation need the other packages of OpenMMLab. With --openmmlab, which
tools/install.sh passes, all packages are needed.

A line marked `ok` works, `--` is a package that only other uses need, and `!!` must be mended: the
exit status is then 1, else 0. Every line that is not `ok` names its fix: a pip command or, in the
environment that tools/install.sh made, that script. Packages that may be missing or broken are
imported inside functions.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import NamedTuple

from mmpola import commands


class Requirement(NamedTuple):
    """A distribution that mmpola needs.

    Attributes:
        name: its name.
        lowest: its lowest supported version.
        limit: the first version that is too new; None if none is.
        pip: the command that installs it.
        module: imports only if the distribution works; None if its version says enough.
        use: what needs it; '' if everything does.
        fork: a distribution of the same modules, and its lowest supported version.
    """

    name: str
    lowest: str
    limit: str | None
    pip: str
    module: str | None = None
    use: str = ''
    fork: tuple[str, str] | None = None


BUILD_MMCV = (
    'pip install "setuptools<82" wheel ninja psutil && pip install --no-build-isolation mmcv==2.1.0'
)
"""With build isolation, mmcv is silently installed without its operators."""

TORCH = 'pip install --upgrade torch torchvision'

REQUIRED = (
    Requirement('torch', '2.6', None, TORCH),
    Requirement('torchvision', '0.21', None, TORCH, 'torchvision.ops'),
    Requirement('timm', '1.0.21', None, 'pip install --upgrade timm'),
    Requirement('einops', '0', None, 'pip install einops'),
)

MMENGINE = Requirement(
    name='mmengine',
    lowest='0.10.0',
    limit='1.0.0',
    pip='pip install mmengine==0.10.7',
    module='mmengine.runner',
    use='training',
    fork=('onedl-mmengine', '0.10.12'),
)
MMCV = Requirement(
    name='mmcv',
    lowest='2.0.0',
    limit='2.2.0',  # mmdet 3.3 and mmseg 1.2.2 refuse it
    pip=BUILD_MMCV,
    module='mmcv.ops',
    use='mmdet and mmsegmentation',
    fork=('onedl-mmcv', '2.3.6'),
)
MMDET = Requirement(
    name='mmdet',
    lowest='3.3.0',
    limit='4.0.0',
    pip='pip install mmdet==3.3.0',
    module='mmdet.models',
    use='detection',
    fork=('onedl-mmdetection', '3.5.1'),
)
MMSEG = Requirement(
    name='mmsegmentation',
    lowest='1.2.2',
    limit='2.0.0',
    pip='pip install mmsegmentation==1.2.2 ftfy regex',
    module='mmseg.models',
    use='segmentation',
    fork=('onedl-mmsegmentation', '1.4.2'),
)
OPENMMLAB = (MMENGINE, MMCV, MMDET, MMSEG)

INSTALLER = 'bash tools/install.sh'

BROKEN_MARK = '!!'
"""Marks a line that makes the exit status 1."""


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        group: heading above the line: a kind of use, or the machine.
        what: the package, module or device.
        found: its version or state.
        remedy: the fix, empty if nothing is wrong.
        needed: whether something that is installed, or asked for, fails without the fix.
    """

    group: str
    what: str
    found: str
    remedy: str = ''
    needed: bool = True

    @property
    def mark(self) -> str:
        """The sign at the beginning of the line."""
        if not self.remedy:
            return 'ok'
        if self.needed:
            return BROKEN_MARK
        return '--'


def findings(by_installer: bool, all_needed: bool) -> Iterator[Finding]:
    """Yield every line of the report, in the order in which the parts depend on each other.

    Args:
        by_installer: whether tools/install.sh has made this environment; then it is every fix.
        all_needed: whether all of OpenMMLab is needed. Otherwise only the packages are needed that
            installed packages of it need.
    """
    mmengine = _installed_distribution(MMENGINE)
    mmcv = _installed_distribution(MMCV)
    mmdet = _installed_distribution(MMDET)
    mmseg = _installed_distribution(MMSEG)
    openmmlab = (mmengine, mmcv, mmdet, mmseg)
    installer = INSTALLER
    if openmmlab != OPENMMLAB:
        installer = f'{INSTALLER} --forks'

    def remedy(pip: str) -> str:
        if by_installer:
            return installer
        return pip

    group = 'layers and timm'
    yield Finding(group, 'Python', platform.python_version())
    for requirement in REQUIRED:
        yield from _package(group, requirement, remedy(requirement.pip), needed=True)

    needed = dict.fromkeys(openmmlab, all_needed)
    if any(_version(requirement.name) for requirement in openmmlab):
        needed[mmengine] = True
    if any(_version(requirement.name) for requirement in (mmdet, mmseg)):
        needed[mmcv] = True
    for requirement in openmmlab:
        pip = remedy(requirement.pip)
        yield from _package('OpenMMLab', requirement, pip, needed[requirement])
    yield from _hardware('this machine', remedy(TORCH))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _installed_distribution(requirement: Requirement) -> Requirement:
    """Return the rule for the fork if it is installed and the distribution itself is not."""
    if requirement.fork is None:
        return requirement
    name, lowest = requirement.fork
    if _version(requirement.name) or not _version(name):
        return requirement
    return requirement._replace(
        name=name, lowest=lowest, limit=None, pip=f'pip install --upgrade {name}'
    )


def _package(group: str, requirement: Requirement, remedy: str, needed: bool) -> Iterator[Finding]:
    """Yield the version of a distribution and, where it is installed, whether its module imports.

    Args:
        group: heading of the lines.
        requirement: the distribution.
        remedy: installs it.
        needed: whether it must be installed; what is installed must work in any case.
    """
    range_text = f'needs >= {requirement.lowest}'
    if requirement.limit:
        range_text += f', < {requirement.limit}'
    fix = f'{range_text}: {remedy}'
    version = _version(requirement.name)
    if version is None:
        state = 'not installed'
        if requirement.use:
            state += f' ({requirement.use} needs it)'
        yield Finding(group, requirement.name, state, fix, needed)
        return
    is_too_old = _numbers(version) < _numbers(requirement.lowest)
    is_too_new = requirement.limit is not None and _numbers(version) >= _numbers(requirement.limit)
    if is_too_old or is_too_new:
        yield Finding(group, requirement.name, version, fix)
    else:
        yield Finding(group, requirement.name, version)
    if requirement.module is not None:
        yield _importable(group, requirement.module, remedy)


def _numbers(version: str) -> list[int]:
    """Convert '2.11.0+cu130' to [2, 11, 0]."""
    return [int(part) for part in version.split('+')[0].split('.') if part.isdigit()]


def _importable(group: str, module: str, remedy: str) -> Finding:
    try:
        import_module(module)
    except Exception as error:  # a binary built for another version raises any type
        return Finding(group, module, _described(error), remedy)
    return Finding(group, module, 'imports')


def _described(error: Exception) -> str:
    """Return type and first line of an error; `mmpola.messages` needs an MMEngine that works."""
    text = type(error).__name__
    lines = str(error).splitlines()
    if lines:
        text += f': {lines[0]}'
    return text


def _hardware(group: str, remedy: str) -> Iterator[Finding]:
    """Yield the GPU and the attention backends, which need a torch that works."""
    try:
        import torch

        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            names = ', '.join(torch.cuda.get_device_name(index) for index in range(count))
            yield Finding(group, 'GPU', f'{names} (CUDA {torch.version.cuda})')
        else:
            yield Finding(group, 'GPU', 'none: training runs on the CPU')
    except Exception as error:
        yield Finding(group, 'GPU', f'unknown, torch does not work: {_described(error)}', remedy)
    try:
        from mmpola.ops import available_backends, unavailable_backends

        yield Finding(group, 'attention backends', ', '.join(available_backends()))
        for name, reasons in unavailable_backends().items():
            yield Finding(group, f'backend {name}', 'cannot run here: ' + '; '.join(reasons))
    except Exception as error:
        state = f'mmpola.ops cannot be imported: {_described(error)}'
        yield Finding(group, 'attention backends', state, remedy)


def main() -> int:
    """Run a command, or print the report and return the exit status."""
    if len(sys.argv) > 1 and not sys.argv[1].startswith('-'):
        commands.run(sys.argv[1], sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(prog='mmpola', usage=commands.USAGE)
    parser.add_argument(
        '--openmmlab', action='store_true', help='fail if a package of OpenMMLab is missing'
    )
    args = parser.parse_args()
    venv = Path(__file__).resolve().parents[1] / '.venv'
    by_installer = Path(sys.prefix).resolve() == venv.resolve()
    print(f'interpreter: {sys.executable}')
    rows = list(findings(by_installer, args.openmmlab))
    width = max(len(row.what) for row in rows)
    group = ''
    for row in rows:
        if row.group != group:
            group = row.group
            print(f'{group}:')
        line = f'{row.mark}  {row.what:<{width}}  {row.found}'
        if row.remedy:
            line += f'  -> {row.remedy}'
        print(line)
    return int(any(row.mark == BROKEN_MARK for row in rows))


if __name__ == '__main__':
    sys.exit(main())
