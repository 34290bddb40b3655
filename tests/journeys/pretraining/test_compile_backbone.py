"""Compiling the backbone: a graph for all image sizes, the same maps and names of parameters."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from mmpola.backbones import PolaSwin
from mmpola.pretraining.compile_backbone import compile_backbone
from tests.helpers.processes import run_script
from tests.helpers.refusals import refusal


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        arch = {'embed_dims': 8, 'depths': (2, 1, 1, 1), 'num_heads': (2, 2, 4, 4)}
        types = ('LS', 'L', 'L', 'L')  # with windows
        self.backbone = PolaSwin(arch, attn_types=types, out_indices=(0,), pretrain_img_size=32)


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def test_one_graph_serves_every_image_size():
    torch.compiler.reset()
    counters.clear()
    detector = Detector()
    eager = copy.deepcopy(detector)
    names = list(detector.state_dict())
    compile_backbone(Wrapper(detector), 'eager')
    for size in ((2, 3, 32, 48), (2, 3, 40, 36), (3, 3, 64, 30)):
        image = torch.randn(size)
        (found,) = detector.backbone(image)
        (expected,) = eager.backbone(image)
        torch.testing.assert_close(found, expected)
        found.square().mean().backward()
        expected.square().mean().backward()
    for parameter, other in zip(detector.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)
    assert counters['stats']['unique_graphs'] == 1
    assert list(detector.state_dict()) == names


@pytest.mark.parametrize(
    ('model', 'backend', 'message'),
    [
        (nn.ReLU(), 'eager', 'compile: expected a model with a backbone'),
        (
            Detector(),
            'fast',
            'compile: expected a backend of torch.compile, such as inductor or eager',
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused(model, backend, message):
    assert refusal(compile_backbone, model, backend).startswith(message)


@pytest.mark.slow
@pytest.mark.usefixtures('unformatted_configs')
def test_a_detector_whose_backbone_has_windows_trains(tiny_config, tmp_path):
    """tests/journeys/backbones/test_compilation.py compiles its backward pass."""
    work = tmp_path / 'work'
    settings = ['train_cfg.max_epochs=1', 'model.backbone.with_cp=True']
    settings.append('train_dataloader.dataset.indices=2')  # one step; every size is compiled
    torch.compiler.reset()
    status = run_script(
        'train',
        tiny_config,
        '--work-dir',
        work,
        '--compile',
        'eager',
        '--cfg-options',
        *settings,
    )
    assert status == 0
    weights = torch.load(work / 'epoch_1.pth', weights_only=False)['state_dict']
    table = weights['backbone.stages.3.blocks.0.attn.relative_position_bias_table']
    assert table.isfinite().all()
    tested = ('--work-dir', tmp_path / 'tested')
    with torch.compiler.set_stance('force_eager'):
        assert run_script('test', tiny_config, work / 'epoch_1.pth', '--compile', *tested) == 0
