"""What tools that work through modules, hooks and state dicts expect of every model, without them.

tests/neighbours runs the tools themselves where they are installed.
"""

import copy

import pytest
import timm
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils._pytree import tree_leaves

import mmpola.timm  # noqa: F401
from mmpola.checkpoint import CheckpointError
from mmpola.papers.lra.encoder import SequenceEncoder
from tests.backbones.test_base import SMALL, build
from tests.helpers.by_hand import others_by_hand
from tests.helpers.models import SMALL as TIMM_MODELS
from tests.layers.test_contract import NETS as LAYERS
from tests.layers.test_contract import draw

ENCODER = {'vocab_size': 9, 'length': 12, 'dim': 8, 'depth': 1, 'drop': 0.0}
SEQUENCES = {'LRA pola': 'pola', 'LRA polaformer_pp': 'polaformer_pp', 'LRA softmax': 'softmax'}
NETS = [*SMALL, *LAYERS, *SEQUENCES]
EVERY_NET = pytest.mark.parametrize('name', NETS)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


def net_and_input(name):
    """A small net in which every parameter matters, and what it reads."""
    if name in SMALL:
        net = build(name, out_indices=(0, 1, 2))
        x = torch.randn(2, 3, 40, 56)
    elif name in LAYERS:
        net = LAYERS[name]()
        x = draw(name)
    else:
        net = SequenceEncoder(**ENCODER, attention=SEQUENCES[name])
        x = torch.randint(1, 9, (2, 12))
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2)
    return net, x


def flat(output):
    """All tensors of an output."""
    return [x for x in tree_leaves(output) if x is not None]


def assert_equal_outputs(found, expected):
    for x, y in zip(flat(found), flat(expected), strict=True):
        assert torch.equal(x, y)


def with_own_parameters(net):
    """The modules that have parameters of their own, by name."""
    return {
        name: module
        for name, module in net.named_modules()
        if list(module.parameters(recurse=False))
    }


@EVERY_NET
def test_modules_are_called_with_a_tensor_and_return_tensors(name):
    """As torchsummary, torchinfo and quantisation observers need it."""
    net, x = net_and_input(name)
    called = set()

    def look(module, inputs, output):
        called.add(module)
        assert isinstance(inputs[0], torch.Tensor), module
        assert all(isinstance(part, torch.Tensor) for part in flat(output)), module

    for module in net.modules():
        module.register_forward_hook(look)
    net(x)
    missing = [key for key, module in with_own_parameters(net).items() if module not in called]
    assert missing == []


@EVERY_NET
def test_parameters_are_read_only_while_their_module_runs(name):
    """Sharding and offloading bring them there before, and take them away after."""
    net, x = net_and_input(name)
    net.eval()
    with torch.no_grad():
        expected = net(x)
    kept = {}

    def give(module, inputs):
        for parameter in module.parameters(recurse=False):
            parameter.data = kept[parameter]

    def take(module, inputs=None, output=None):
        for parameter in module.parameters(recurse=False):
            kept[parameter] = parameter.data
            parameter.data = torch.empty(0)

    for module in with_own_parameters(net).values():
        module.register_forward_pre_hook(give)
        module.register_forward_hook(take)
        take(module)
    with torch.no_grad():
        assert_equal_outputs(net(x), expected)


def train(net, x):
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        sum(y.square().mean() for y in flat(net(x))).backward()
        optimizer.step()


@EVERY_NET
def test_pruned_layers_train(name):
    net, x = net_and_input(name)
    pruned = [m for m in net.modules() if isinstance(m, (nn.Linear, *CONVOLUTIONS))]
    for layer in pruned:
        prune.l1_unstructured(layer, 'weight', amount=0.3)
    before = [layer.weight_orig.detach().clone() for layer in pruned]
    train(net, x)
    net(x)
    for layer, weight in zip(pruned, before, strict=True):
        assert torch.equal(layer.weight, layer.weight_orig * layer.weight_mask), layer
        assert not torch.equal(layer.weight_orig, weight), layer


HAVE_CONVOLUTIONS = [
    name
    for name in NETS
    if any(isinstance(module, CONVOLUTIONS) for module in net_and_input(name)[0].modules())
]


@pytest.mark.parametrize('name', HAVE_CONVOLUTIONS)
@pytest.mark.parametrize('kind', ['weight_norm', 'spectral_norm'])
@pytest.mark.filterwarnings('ignore:.*weight_norm.* is deprecated')
def test_reparametrised_convolutions_train(name, kind):
    for apply in (getattr(nn.utils, kind), getattr(parametrizations, kind)):
        net, x = net_and_input(name)
        for module in list(net.modules()):
            if isinstance(module, CONVOLUTIONS):
                apply(module)
        train(net, x)
        for key, parameter in net.named_parameters():
            assert parameter.grad is not None, key


@EVERY_NET
def test_state_dicts_hold_all_that_a_model_computes_with(name):
    """On the meta device there is nothing but the state dict."""
    net, x = net_and_input(name)
    net.eval()
    expected = net(x)
    for module in net.modules():
        assert not module._non_persistent_buffers_set
        assert not [key for key, value in vars(module).items() if isinstance(value, torch.Tensor)]

    empty = copy.deepcopy(net).to('meta')
    empty.load_state_dict(net.state_dict(), assign=True)
    assert_equal_outputs(empty(x), expected)

    empty = copy.deepcopy(net).to('meta').to_empty(device='cpu')
    for part in empty.state_dict().values():
        part.fill_(7)
    empty.load_state_dict(net.state_dict())
    assert_equal_outputs(empty(x), expected)


@pytest.mark.parametrize('name', SMALL)
def test_files_with_buffers_that_are_computed_now(name):
    """Swin's released files, and older ones of ours, have the index of the bias table."""
    net = build(name)
    weights = dict(net.state_dict())
    weights['stages.0.blocks.0.attn.relative_position_index'] = torch.zeros(49, 49)
    other = build(name)
    other.load_state_dict(weights)
    x = torch.randn(1, 3, 40, 56)
    assert_equal_outputs(other.eval()(x), net.eval()(x))


def quantised(name):
    model = timm.create_model(name, num_classes=5, **TIMM_MODELS[name]).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)


@pytest.mark.parametrize('name', others_by_hand(TIMM_MODELS, ['pola_swin_tiny']))
@pytest.mark.filterwarnings('ignore:torch.ao.quantization is deprecated')
def test_quantised_models_load_their_own_state_dict(name):
    """It has tuples, dtypes and quantised tensors, which one function leaves as they are."""
    model = quantised(name)
    x = torch.randn(1, 3, 64, 64)
    for part, other in ((model, quantised(name)), (model.backbone, quantised(name).backbone)):
        weights = part.state_dict()
        assert not torch.equal(flat(other(x))[0], flat(part(x))[0])
        other.load_state_dict(weights, strict=True)
        assert_equal_outputs(other(x), part(x))
    weights = model.state_dict()
    removed = next(key for key in weights if key.endswith('_packed_params.dtype'))
    del weights[removed]
    with pytest.raises(CheckpointError, match=f'missing: {removed}'):
        model.load_state_dict(weights)
