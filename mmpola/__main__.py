"""Report what this environment can be used for: versions, compiled operators, GPU, attention backends.

    mmpola [--openmmlab]           or: python -m mmpola [--openmmlab]
    mmpola COMMAND ARGUMENTS…      runs a script, see mmpola/commands.py; also: torchrun … -m mmpola COMMAND …

Layers and models for timm need torch, torchvision, timm and einops. Training needs MMEngine too,
detection and segmentation the other packages of OpenMMLab. Lines marked `ok` work, `--` are
packages that only other uses need, and `!!` must be mended. Exit status 1 if there is such a line,
else 0; with --openmmlab, which tools/install.sh passes, all packages are needed. Every line that is
not `ok` names its fix: pip commands, or `bash tools/install.sh` in the environment that this script
has made. Packages that may be missing or broken are imported inside functions.
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
    """A distribution: its lowest supported version, the first that is too new, and the pip command that installs it.

    Attributes:
        module: imports only if the distribution works; None if its version says enough.
        use: what it is needed for, if that is not everything.
        fork: a distribution of the same modules, with its lowest supported version.
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

NEEDED = (
    Requirement('torch', '2.6', None, TORCH),
    Requirement('torchvision', '0.21', None, TORCH, 'torchvision.ops'),
    Requirement('timm', '1.0.21', None, 'pip install --upgrade timm'),
    Requirement('einops', '0', None, 'pip install einops'),
)

OPENMMLAB = (  # mmdet 3.3 and mmseg 1.2.2 refuse mmcv 2.2
    Requirement(
        'mmengine',
        '0.10.0',
        '1.0.0',
        'pip install mmengine==0.10.7',
        'mmengine.runner',
        'training',
        ('onedl-mmengine', '0.10.12'),
    ),
    Requirement(
        'mmcv',
        '2.0.0',
        '2.2.0',
        BUILD_MMCV,
        'mmcv.ops',
        'mmdet and mmsegmentation',
        ('onedl-mmcv', '2.3.6'),
    ),
    Requirement(
        'mmdet',
        '3.3.0',
        '4.0.0',
        'pip install mmdet==3.3.0',
        'mmdet.models',
        'detection',
        ('onedl-mmdetection', '3.5.1'),
    ),
    Requirement(
        'mmsegmentation',
        '1.2.2',
        '2.0.0',
        'pip install mmsegmentation==1.2.2 ftfy regex',
        'mmseg.models',
        'segmentation',
        ('onedl-mmsegmentation', '1.4.2'),
    ),
)

INSTALLER = 'bash tools/install.sh'


BROKEN = '!!'
"""Marks the lines because of which the exit status is 1."""


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        group: heading that the line stands under: a kind of use, or the machine.
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
        return BROKEN if self.needed else '--'


def findings(by_installer: bool, all_needed: bool) -> Iterator[Finding]:
    """Yield every line of the report, in the order in which the parts depend on each other.

    Args:
        by_installer: whether tools/install.sh, which then is the fix of everything, has made this
            environment.
        all_needed: whether all of OpenMMLab is needed. Otherwise a package of it may be missing
            unless another one, which is installed, needs it.
    """
    openmmlab = [_installed(requirement) for requirement in OPENMMLAB]
    installer = INSTALLER if openmmlab == [*OPENMMLAB] else f'{INSTALLER} --forks'
    detection_or_segmentation = any(_version(requirement.name) for requirement in openmmlab[2:])
    any_of_openmmlab = any(_version(requirement.name) for requirement in openmmlab)
    needed = {openmmlab[0].name: any_of_openmmlab, openmmlab[1].name: detection_or_segmentation}

    def remedy(pip: str) -> str:
        return installer if by_installer else pip

    group = 'layers and timm'
    yield Finding(
        group,
        'Python',
        platform.python_version(),
        '' if sys.version_info >= (3, 10) else 'needs >= 3.10',
    )
    for requirement in NEEDED:
        yield from _package(group, requirement, remedy(requirement.pip), needed=True)
    group = 'OpenMMLab'
    for requirement in openmmlab:
        is_needed = all_needed or needed.get(requirement.name, False)
        yield from _package(group, requirement, remedy(requirement.pip), is_needed)
    yield from _hardware('this machine', remedy(TORCH))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _installed(requirement: Requirement) -> Requirement:
    """Return the rule for the fork if that is installed and the distribution itself is not."""
    if requirement.fork and not _version(requirement.name) and _version(requirement.fork[0]):
        name, lowest = requirement.fork
        return requirement._replace(
            name=name, lowest=lowest, limit=None, pip=f'pip install --upgrade {name}'
        )
    return requirement


def _package(group: str, requirement: Requirement, remedy: str, needed: bool) -> Iterator[Finding]:
    """Yield the version of a distribution and, where it is installed, whether its module imports.

    Args:
        group: heading of the lines.
        requirement: the distribution.
        remedy: installs it.
        needed: whether it must be installed; what is installed must work in any case.
    """
    upper = f', < {requirement.limit}' if requirement.limit else ''
    fix = f'needs >= {requirement.lowest}{upper}: {remedy}'
    version = _version(requirement.name)
    if version is None:
        use = f' ({requirement.use} needs it)' if requirement.use else ''
        yield Finding(group, requirement.name, f'not installed{use}', fix, needed)
        return
    low_enough = requirement.limit is None or _numbers(version) < _numbers(requirement.limit)
    fits = low_enough and _numbers(version) >= _numbers(requirement.lowest)
    yield Finding(group, requirement.name, version, '' if fits else fix)
    if requirement.module is not None:
        yield _importable(group, requirement.module, remedy)


def _numbers(version: str) -> list[int]:
    """Convert '2.11.0+cu130' to [2, 11, 0]."""
    return [int(part) for part in version.split('+')[0].split('.') if part.isdigit()]


def _importable(group: str, module: str, remedy: str) -> Finding:
    try:
        import_module(module)
    except Exception as error:  # a binary built for another version raises any type
        return Finding(group, module, _first_line(error), remedy)
    return Finding(group, module, 'imports')


def _first_line(error: Exception) -> str:
    return ': '.join([type(error).__name__, *str(error).splitlines()[:1]])


def _hardware(group: str, remedy: str) -> Iterator[Finding]:
    """Yield the GPU and the attention backends, which need a torch that works."""
    try:
        import torch

        if torch.cuda.is_available():
            names = ', '.join(
                torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
            )
            yield Finding(group, 'GPU', f'{names} (CUDA {torch.version.cuda})')
        else:
            yield Finding(group, 'GPU', 'none: training runs on the CPU')
    except Exception as error:
        yield Finding(group, 'GPU', f'unknown, torch does not work: {_first_line(error)}', remedy)
    try:
        from mmpola.ops import available_backends, unavailable_backends

        yield Finding(group, 'attention backends', ', '.join(available_backends()))
        for name, reasons in unavailable_backends().items():
            yield Finding(group, f'backend {name}', 'cannot run here: ' + '; '.join(reasons))
    except Exception as error:
        yield Finding(
            group,
            'attention backends',
            f'mmpola.ops cannot be imported: {_first_line(error)}',
            remedy,
        )


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
        print(
            f'{row.mark}  {row.what:<{width}}  {row.found}'
            + (f'  -> {row.remedy}' if row.remedy else '')
        )
    return int(any(row.mark == BROKEN for row in rows))


if __name__ == '__main__':
    sys.exit(main())
