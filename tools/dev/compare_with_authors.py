"""Compares mmpola with the authors' code: logits and gradients for equal random weights and images.

    python tools/dev/compare_with_authors.py          the smallest of each family, half a minute
    python tools/dev/compare_with_authors.py --all    all 14 published models, three minutes

Clones both repositories of the authors, and runs their model files of a fixed commit in this
process. Their random weights go into our models through the same renaming as released files;
renamed back, they must be the authors' tensors again. All is computed in float64, in eval mode.

Printed are relative errors |ours - theirs| / |theirs|; for the gradients, the largest of any
parameter. In PolaFormer++ the authors compute the angles of the rotary tables in float32; a second
row has the same comparison with their angles in float64. Of PolaDeiT and Pola-PVTv2 there is no
published code.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
import importlib
import io
import subprocess
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
import yaml
from torch import Tensor, nn

from mmpola.backbones import named_backbone
from mmpola.backbones.classifier import Classifier
from mmpola.backbones.weight_names import to_released
from mmpola.messages import UsageError, listed, run_main

POLAFORMER = (
    'https://github.com/ZacharyMeng/PolaFormer',
    '44cdd39e2f6c2a409ab1c16a9b836f08f22cfc79',
)
POLAFORMER_PP = (
    'https://github.com/ZacharyMeng/PolaFormerPP',
    'fd26f5e1c1bcc3210f4d583294ebf9a4d01d62dc',
)
"""Address and commit."""

SETTINGS = {
    'pola_pvt_tiny': 'pola_pvt_t',
    'pola_pvt_small': 'pola_pvt_s',
    'pola_pvt_medium': 'pola_pvt_m',
    'pola_pvt_large': 'pola_pvt_b',
    'pola_swin_tiny': 'pola_swin_t',
    'pola_swin_small': 'pola_swin_s',
    'pola_swin_base': 'pola_swin_b',
    'pola_swin_base_384': 'pola_swin_b_384',
}
"""Our name -> the authors' settings file in cfgs/."""

PP_NAMES = tuple(f'polaformer_pp_b{number}' for number in range(6))

SMALLEST = ('pola_pvt_tiny', 'pola_swin_tiny', 'polaformer_pp_b0')

USED_FOR_COUNTING = ('fvcore', 'fvcore.nn')
"""Packages that the authors' model files import and do not use in a forward pass."""

NEVER_USED = {'PyramidVisionTransformer': ('norm.weight', 'norm.bias')}
"""Class of the authors -> tensors that its forward pass never reads, and our model lacks."""

LIMIT = 1e-12
LIMIT_OF_FLOAT32_ANGLES = 1e-5
"""Relative errors from here on are a disagreement."""


def read_file(clone: Path, commit: str, path: str) -> str:
    """Return the text of a file of a commit."""
    command = ['git', '-C', str(clone), 'show', f'{commit}:{path}']
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def clone_repository(source: str, commit: str, folder: Path) -> Path:
    """Clone a repository without checking it out.

    Raises:
        UsageError: it cannot be cloned, or lacks the commit.
    """
    clone = ['git', 'clone', '--quiet', '--no-checkout', source, str(folder)]
    has_commit = ['git', '-C', str(folder), 'cat-file', '-e', f'{commit}^{{commit}}']
    for command in (clone, has_commit):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise UsageError(
                f'{source}: expected a git repository with commit {commit}: {done.stderr.strip()}'
            )
    return folder


def run_as_module(name: str, source: str) -> ModuleType:
    """Run the text of a Python file as a module."""
    for package in USED_FOR_COUNTING:
        try:
            importlib.import_module(package)
        except ImportError:
            sys.modules[package] = MagicMock()
    module = ModuleType(name)
    sys.modules[name] = module  # timm's registry looks for it there
    exec(compile(source, name, 'exec'), module.__dict__)
    return module


def authors_model(name: str, clones: dict[str, Path]) -> tuple[nn.Module, int]:
    """Build the authors' model of one of our names, and return it with its image size.

    What its settings file leaves out has the value of the authors' config.py.
    """
    if name in PP_NAMES:
        source = read_file(clones['polaformer_pp'], POLAFORMER_PP[1], 'polaformer++/models/pola.py')
        module = run_as_module('pola', source)
        return getattr(module, f'POLA_{name.removeprefix("polaformer_pp_")}')(), 224
    clone = clones['polaformer']
    settings = yaml.safe_load(read_file(clone, POLAFORMER[1], f'cfgs/{SETTINGS[name]}.yaml'))
    side = settings.get('DATA', {}).get('IMG_SIZE', 224)
    model = settings['MODEL']
    family = 'pola_swin' if model['TYPE'] == 'pola_swin' else 'pola_pvt'
    module = run_as_module(family, read_file(clone, POLAFORMER[1], f'models/{family}.py'))
    arguments: dict[str, Any] = {
        'attn_type': model['LA']['ATTN_TYPE'],
        'alpha': 4,
        'kernel_size': 5,
    }
    if family == 'pola_pvt':
        return getattr(module, model['TYPE'])(la_sr_ratios='1111', **arguments), side
    for key, value in model['SWIN'].items():
        arguments[key.lower()] = value
    return module.PolaSwinTransformer(img_size=side, **arguments), side


@torch.no_grad()
def draw_constants(model: nn.Module) -> None:
    """Draw the parameters and statistics that start as a constant, such as 0, 1 or 1e-6.

    Biases, norms, exponents, scales and tables would otherwise not take part in the comparison.
    """
    for parameter in model.parameters():
        if (parameter == parameter.flatten()[0]).all():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    for name, buffer in model.named_buffers():
        if name.endswith('running_mean'):
            buffer.normal_(std=0.2)
        if name.endswith('running_var'):
            buffer.uniform_(0.5, 2)


def copy_weights(authors: nn.Module, ours: Classifier) -> int:
    """Copy the authors' weights into our model, and return the number of tensors.

    Raises:
        UsageError: the names of our model, renamed back, do not give the authors' tensors.
    """
    published = authors.state_dict()
    used = dict(published)
    for name in NEVER_USED.get(type(authors).__name__, ()):
        del used[name]
    ours.load_state_dict(used)  # renamed as a released file
    bare = {name.removeprefix('backbone.'): x for name, x in ours.state_dict().items()}
    back = to_released(bare, ours.backbone.released_names)
    for name, x in back.items():
        if name not in published or not torch.equal(x, published[name]):
            raise UsageError(f"{name}: expected the authors' tensor, got another one")
    return len(back)


def logits_and_gradients(model: nn.Module, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits, and the gradients of the sum of their squares, by the parameter's name."""
    logits = model(images)
    logits.square().sum().backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad
    return logits.detach(), gradients


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return |found - expected| / |expected|."""
    return ((found - expected).norm() / expected.norm()).item()


def compare(name: str, clones: dict[str, Path], dtype: torch.dtype) -> tuple[int, float, float]:
    """Compare a model with the authors', which is built in `dtype` before it becomes float64.

    Returns:
        Number of equal tensors, error of the logits, largest error of a gradient.
    """
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        # Their layers print their settings, and their imports have old names
        warnings.simplefilter('ignore')
        authors, side = authors_model(name, clones)
    torch.set_default_dtype(torch.float32)
    authors = authors.double().eval()
    draw_constants(authors)
    backbone, arguments = named_backbone(name)
    ours = Classifier(backbone, 1000, arguments=arguments).double().eval()
    tensors = copy_weights(authors, ours)
    images = torch.randn(1, 3, side, side, dtype=torch.float64)
    expected, expected_gradients = logits_and_gradients(authors, images)
    logits, gradients = logits_and_gradients(ours, images)
    expected_gradients = ours.rename_weights(expected_gradients)
    if gradients.keys() != expected_gradients.keys():
        different = sorted(gradients.keys() ^ expected_gradients.keys())
        raise UsageError(f'{name}: only one of the models has gradients of {different}')
    errors = [relative_error(gradients[key], x) for key, x in expected_gradients.items()]
    return tensors, relative_error(logits, expected), max(errors)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare logits and gradients with the authors' code, in float64"
    )
    parser.add_argument('--all', action='store_true', help='all 14 published models')
    for option, (address, _) in (('polaformer', POLAFORMER), ('polaformer-pp', POLAFORMER_PP)):
        parser.add_argument(
            f'--{option}',
            metavar='PATH|URL',
            default=address,
            help=f'repository to clone (default: {address})',
        )
    args = parser.parse_args()
    names = [*SETTINGS, *PP_NAMES] if args.all else SMALLEST
    rows = []
    for name in names:
        if name in PP_NAMES:
            rows.append((name, name, torch.float32, LIMIT_OF_FLOAT32_ANGLES))
            rows.append(('  angles in float64', name, torch.float64, LIMIT))
        else:
            rows.append((name, name, torch.float32, LIMIT))

    disagreeing = []
    with tempfile.TemporaryDirectory() as folder:
        clones = {
            'polaformer': clone_repository(args.polaformer, POLAFORMER[1], Path(folder, 'pola')),
            'polaformer_pp': clone_repository(
                args.polaformer_pp, POLAFORMER_PP[1], Path(folder, 'pp')
            ),
        }
        print(f'{"model":<20} {"equal tensors":>13} {"logits":>9} {"gradients":>9}')
        for title, name, dtype, limit in rows:
            tensors, of_logits, of_gradients = compare(name, clones, dtype)
            print(f'{title:<20} {tensors:>13} {of_logits:>9.1e} {of_gradients:>9.1e}', flush=True)
            if not max(of_logits, of_gradients) < limit:
                disagreeing.append(f'{name} ({dtype})')
    if disagreeing:
        raise UsageError(f"expected the authors' results, got others of {listed(disagreeing)}")


if __name__ == '__main__':
    run_main(main)
