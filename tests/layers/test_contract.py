"""What the public layers promise to any network: copies, processes, compilers, exporters,
torch.func, dtypes, sizes.
"""

import copy
import pickle

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mmpola import PolaAttention, PolaFormerPPAttention, PolaMultiheadAttention
from mmpola.layers import LinearAttention, PolaSpatialReductionAttention


class Net(nn.Module):
    """A layer as a function of one tensor: a map [B, 8, H, W], or tokens [B, N, 8]."""

    def __init__(self, layer, **arguments):
        super().__init__()
        self.layer, self.arguments = layer, arguments

    def forward(self, x):
        if not isinstance(self.layer, PolaMultiheadAttention):
            return self.layer(x, **self.arguments)
        lengths = x[..., 0].isfinite().long().sum(-1, keepdim=True) - 1  # the last token is padding
        padding = torch.arange(x.shape[-2], device=x.device).expand(x.shape[:-1]) >= lengths
        return self.layer(x.flip(-2), x, x, padding)[0]


NETS = {
    'map': lambda: Net(PolaAttention(8, 2)),
    'reduced map with table': lambda: Net(
        PolaSpatialReductionAttention(8, 2, grid=(2, 2), sr_ratio=2)
    ),
    'polaformer_pp': lambda: Net(PolaFormerPPAttention(8, 2)),
    'tokens': lambda: Net(PolaAttention(8, 2), grid=(3, 4)),
    'polaformer_pp, tokens': lambda: Net(PolaFormerPPAttention(8, 2), grid=(3, 4)),
    'multihead': lambda: Net(PolaMultiheadAttention(8, 2, batch_first=True, gate=True)),
}
"""Every public layer. Without a `grid`, the linear attention layers read maps."""
MAPS = [
    name
    for name, make in NETS.items()
    if isinstance(make().layer, LinearAttention) and 'grid' not in make().arguments
]
FIXED_GRID = [name for name, make in NETS.items() if 'grid' in make().arguments]
EVERY_NET = pytest.mark.parametrize('name', NETS)
SHARED_GRAPH = ('map', 'polaformer_pp', 'tokens')
"""Nets whose operations other nets have too, so that they need not be compiled."""

LIMITS = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.15}
"""Relative error against float64 of an output or gradient, by the dtype that computes it.

Gradients of a scale are differences of larger numbers: in float32 their own error is 1e-5, and the
order in which a CPU adds doubles it.
"""


def build(name):
    net = NETS[name]()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.5)
    return net


def draw(name, *size, batch=2):
    """Draw a map of a size, by default 3 x 4, or as many tokens."""
    rows, columns = size or (3, 4)
    shape = (8, rows, columns) if name in MAPS else (rows * columns, 8)
    return torch.randn(batch, *shape)


def gradients(net, x):
    x = x.clone().requires_grad_()
    output = net(x)
    return [output, *torch.autograd.grad(output.float().square().sum(), [x, *net.parameters()])]


def exact_gradients(net, x):
    """Compute `gradients` in float64."""
    return gradients(copy.deepcopy(net).double(), x.double())


def errors(found, expected):
    """Return the relative error of each tensor."""
    return [
        ((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, expected, strict=True)
    ]


@EVERY_NET
@pytest.mark.parametrize(
    'make', [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=['copy', 'pickle']
)
def test_copies_compute_the_same(name, make):
    net, x = build(name), draw(name)
    expected = net(x)
    with torch.inference_mode():
        net(x)
    other = make(net)
    assert torch.equal(other(x), expected)
    nn.init.normal_(next(other.parameters()))
    assert torch.equal(net(x), expected)


def test_gradients_are_averaged_between_processes():
    """Every parameter takes part in every step, which DistributedDataParallel needs."""
    distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)
    try:
        for name in NETS:
            net, x = build(name), draw(name)
            expected = gradients(net, x)[2:]
            wrapped = DistributedDataParallel(net)
            for _ in range(2):
                net.zero_grad()
                wrapped(x).square().sum().backward()
            for found, grad in zip(net.parameters(), expected, strict=True):
                torch.testing.assert_close(found.grad, grad)
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in NETS if name not in SHARED_GRAPH])
def test_compiles_as_one_graph_for_all_sizes(name):
    """In the hardest case, with padding and interpolation, gradients are compiled too."""
    torch.compiler.reset()
    net = build(name)
    backend = 'aot_eager' if name == 'reduced map with table' else 'eager'
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend=backend)
    # Constants as numbers: symbolic ones would double the time of compilation.
    with torch._dynamo.config.patch(specialize_float=True):
        for size in [(3, 4)] if name in FIXED_GRID else [(3, 4), (5, 6)]:
            x = draw(name, *size)
            found = gradients(compiled, x)
            assert max(errors(found, exact_gradients(net, x))) < LIMITS[torch.float32]


@pytest.mark.slow
@EVERY_NET
def test_exports_for_all_sizes(name):
    net = build(name).eval()
    axes = (0, 2, 3) if name in MAPS else (0,)
    if name == 'multihead':
        axes = (0, 1)
    with torch.no_grad():
        sizes = (dict.fromkeys(axes, torch.export.Dim.DYNAMIC),)
        program = torch.export.export(net, (draw(name),), dynamic_shapes=sizes).module()
        x = draw(name, batch=3) if name in FIXED_GRID else draw(name, 5, 6, batch=3)
        torch.testing.assert_close(program(x), net(x), rtol=1e-4, atol=1e-4)


@EVERY_NET
def test_vmap_and_per_sample_gradients(name):
    net, x = build(name), torch.stack([draw(name), draw(name), draw(name)])
    torch.testing.assert_close(
        torch.vmap(net)(x), torch.stack([net(part) for part in x]), rtol=1e-4, atol=1e-5
    )
    parameters = {key: p.detach() for key, p in net.named_parameters()}

    def loss(parameters, part):
        return torch.func.functional_call(net, parameters, (part,)).square().sum()

    found = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    of_second = [found[key][1] for key in parameters]
    assert max(errors(of_second, exact_gradients(net, x[1])[2:])) < LIMITS[torch.float32]


@EVERY_NET
def test_gradients_of_one_sample_are_half_of_those_of_the_sample_twice(name):
    net = build(name).double()
    sample = draw(name, batch=1).double()
    _, of_input, *of_parameters = gradients(net, sample)
    _, of_both, *twice = gradients(net, torch.cat([sample, sample]))
    torch.testing.assert_close(of_input.expand_as(of_both), of_both)
    torch.testing.assert_close([2 * grad for grad in of_parameters], twice)


@EVERY_NET
@pytest.mark.parametrize('dtype', LIMITS)
def test_gradients_equal_those_of_float64(name, dtype):
    net, x = build(name), draw(name)
    expected = exact_gradients(net, x)
    if dtype != torch.float32:
        with torch.autocast('cpu', dtype):
            found = gradients(net, x)
        assert found[0].dtype == dtype
        assert max(errors(found, expected)) < LIMITS[dtype]
    found = gradients(net.to(dtype), x.to(dtype))
    assert {part.dtype for part in found} == {dtype}
    assert max(errors(found, expected)) < LIMITS[dtype]


@EVERY_NET
@pytest.mark.parametrize(
    ('size', 'batch'), [((3, 4), 0), ((1, 1), 2)], ids=['no sample', 'one token']
)
def test_empty_batches_and_single_tokens_have_gradients(name, size, batch):
    net = build(name)
    if name in FIXED_GRID:
        net.arguments['grid'] = size
    for part in gradients(net, draw(name, *size, batch=batch)):
        assert part.isfinite().all()
