"""Compilation of a backbone with dynamic sizes."""

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from mmpola.backbones import PolaSwin


@pytest.mark.slow
def test_compilation_with_dynamic_sizes_compiles_once():
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return aot_autograd(fw_compiler=lambda module, _: module)(graph, inputs)

    torch._dynamo.reset()
    arch = {'embed_dims': 8, 'depths': (2, 1, 1, 1), 'num_heads': (2, 2, 4, 4)}
    model = PolaSwin(arch, attn_types=('LS', 'L', 'L', 'L'), out_indices=(0,)).eval()
    compiled = torch.compile(model, backend=counting, dynamic=True, fullgraph=True)
    # Without it torch traces twice, because the epsilons of LayerNorms are symbolic at first.
    with torch.no_grad(), torch._dynamo.config.patch(specialize_float=True):
        for height, width in ((64, 96), (112, 112), (49, 66), (36, 224), (100, 45)):
            x = torch.randn(2, 3, height, width)
            for found, expected in zip(compiled(x), model(x), strict=True):
                torch.testing.assert_close(found, expected)
    assert len(graphs) == 1
