"""Mean, deviation and largest magnitude of every initial tensor are those of the authors'
classes.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from mmpola.backbones import PolaPVTv2

RECORDED = json.loads(
    (Path(__file__).parents[1] / 'golden' / 'training' / 'inits.json').read_text()
)
"""Config -> the authors' parameter -> [shape, mean, standard deviation, largest magnitude], of one
random draw.
"""

DEVIATIONS = 8
"""How many standard errors the statistics of two random draws may differ by; a thousand tensors are
compared.
"""

OUTLIER = 0.5
"""timm's truncated normal distribution once returned 2.0, its bound; all other draws are below
0.2.
"""


@pytest.mark.parametrize('name', RECORDED)
def test_initial_weights_are_the_authors(name, root):
    torch.manual_seed(0)
    model = MODELS.build(Config.fromfile(root / 'configs' / f'{name}.py').model)
    expected = model.rename_weights(RECORDED[name])
    if 'pola_pvt' in name:
        del expected['norm.weight'], expected['norm.bias']  # which the authors' network never reads
    parameters = dict(model.named_parameters())
    assert parameters.keys() == expected.keys()
    for key, (shape, mean, deviation, largest) in expected.items():
        values = parameters[key].detach().double()
        number = values.numel()
        assert list(values.shape) == shape, key
        if largest > OUTLIER and deviation > 0:
            deviation = math.sqrt(deviation**2 - largest**2 / number)
            largest = 5 * deviation
        error_of_mean = deviation / math.sqrt(number)
        error_of_deviation = deviation / math.sqrt(2 * number)
        assert abs(values.mean().item() - mean) <= DEVIATIONS * error_of_mean + 1e-6, key
        assert (
            abs(values.std(unbiased=False).item() - deviation)
            <= DEVIATIONS * error_of_deviation + 1e-6
        ), key
        if number > 256:  # tells a uniform distribution from a normal one of the same deviation
            assert values.abs().max().item() == pytest.approx(largest, rel=0.35), key


def test_convolutions_of_pola_pvt_v2_start_as_in_flatten():
    """FLatten, models/flatten_pvt_v2.py:375-389: every convolution, that of attention's values
    included.
    """
    torch.manual_seed(0)
    model = PolaPVTv2('b1', attn_types='LSLL')
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert (
        len(convolutions) == 4 + 8 + 6 + 2
    )  # patches, MLPs, values of linear attention, reductions of softmax
    for conv in convolutions:
        fan_out = math.prod(conv.kernel_size) * conv.out_channels / conv.groups
        number = conv.weight.numel()
        assert conv.weight.std().item() == pytest.approx(
            math.sqrt(2 / fan_out), rel=5 / math.sqrt(2 * number)
        )
        assert not conv.bias.any()
