"""The kernels compiled to machine code, for which no GPU is needed.

MMPOLA_PRINT_RESOURCES=1 with `-s` prints registers, spilled bytes and shared memory as ptxas
reports them: the figures behind the launches in mmpola/ops/triton.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mmpola.ops.triton import IS_INTERPRETED, block_of, exp, mix_and_gate, passes, power
from mmpola.ops.triton.blocks import FUSION_OPTIONS, split_by_sign

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        IS_INTERPRETED, reason='TRITON_INTERPRET=1 is set: kernels are interpreted, not compiled'
    ),
]

MIX_AND_GATE_KERNELS = {
    'mix_and_gate': mix_and_gate.mix_and_gate_kernel,
    'taps': mix_and_gate.mix_and_gate_taps_kernel,
}

DTYPES = {'fp16': torch.float16, 'bf16': torch.bfloat16, 'fp32': torch.float32}
TOKENS = ('p_q', 'p_k', 'p_v', 'p_o', 'p_do', 'p_dq', 'p_dk', 'p_dv', 'p_factor', 'p_y', 'p_g')
COUNTS = ('heads', 'queries', 'keys', 'tokens', 'rows', 'columns', 'tiles', 'tiles_per_part')
FLOATS = ('eps', 'shrink', 'log2_shrink', 'grow', 'inverse_keys')
ABSENT = {'power': (), 'exp': ('p_cos', 'p_sin', 'p_position'), 'rotary': ('p_position',)}
KILOBYTES = {80: 163, 89: 99, 90: 227}
"""Shared memory of one block by compute capability: A100, RTX 40, H100."""


@pytest.fixture(autouse=True)
def _fresh_cache(monkeypatch, tmp_path):
    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))


def compiled(kind, name, dim, dtype='fp16', capability=90):
    """Compile a kernel as it is launched.

    Args:
        kind: 'power', 'exp', 'rotary', 'map' or 'sequence', the last two of `mix_and_gate`.
        name: of the kernel.
        dim, dtype, capability: of heads, tokens and GPU.
    """
    if kind in ('map', 'sequence'):
        kernel = MIX_AND_GATE_KERNELS[name]
        window = (5, 5) if kind == 'map' else (1, 5)
        _, _, constants = mix_and_gate.plan_tiles(
            torch.Size([1, 9, 1, dim]), DTYPES[dtype], (3, 3), window
        )
        constants = {**constants, 'FLIP': False}
        options = {name: constants.pop(name) for name in ('num_warps', *FUSION_OPTIONS)}
        return machine_code(kernel, constants, dtype, capability, options)
    feature_map = power if kind == 'power' else exp
    precision = 'ieee' if dtype == 'fp32' else 'tf32'
    launch = feature_map.launches(precision, kind == 'rotary')[name, block_of(dim)]
    constants = {'D': dim, 'BN': launch.tokens, 'BD': block_of(dim), 'BC': block_of(dim // 2)}
    constants |= {'PRECISION': precision, **dict.fromkeys(ABSENT[kind])}
    options = {'num_warps': launch.warps, 'num_stages': launch.stages, **FUSION_OPTIONS}
    return machine_code(feature_map.KERNELS[name], constants, dtype, capability, options)


def machine_code(kernel, constants, dtype, capability, options):
    """Compile for a GPU that need not be present."""
    signature = {}
    aligned = {}
    for i, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = 'constexpr'
        elif argument in FLOATS:
            signature[argument] = 'fp32'
        elif argument in TOKENS:
            signature[argument] = '*' + dtype
        else:  # other pointers, counts and strides
            signature[argument] = '*fp32' if argument.startswith('p_') else 'i32'
        if argument not in (*constants, *COUNTS, *FLOATS):
            aligned[(i,)] = [['tt.divisibility', 16]]
    constants = {argument: x for argument, x in constants.items() if argument in signature}
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget('cuda', capability, 32), options=options)


CASES = [
    # The head dimensions of the published models: three kernels spill no registers
    *(('power', name, 64, 'fp16', 90, 0) for name in power.KERNELS if name != 'query_gradient'),
    # 360 bytes; with another order of the products it would be thousands
    ('power', 'query_gradient', 64, 'fp16', 80, 400),
    # The least shared memory
    *(('rotary', name, 64, 'fp16', 89, None) for name in exp.KERNELS if name != 'query_gradient'),
    # At most 464 bytes; with another order of the products it would be thousands
    ('rotary', 'query_gradient', 64, 'fp16', 80, 500),
    *(('map', name, 32, 'fp16', 90, 0) for name in MIX_AND_GATE_KERNELS),
]
"""Each kernel once: kind, name, head dimension, dtype, capability, bytes it may spill or None."""

OTHER_CASES = [
    *(('power', name, 32, 'fp16', 90, 0) for name in power.KERNELS if name != 'query_gradient'),
    ('power', 'query_gradient', 32, 'fp16', 90, 300),
    ('power', 'query_gradient', 64, 'fp16', 90, 400),
    ('power', 'query_gradient', 64, 'fp32', 80, 300),
    *(('power', name, 64, 'fp16', 89, None) for name in power.KERNELS),
    ('exp', 'query_gradient', 64, 'fp16', 90, 500),
    ('rotary', 'query_gradient', 64, 'fp16', 89, None),
    ('rotary', 'query_gradient', 64, 'fp16', 90, 500),
    *(('map', name, 32, 'bf16', 90, 0) for name in MIX_AND_GATE_KERNELS),
    *(('map', name, 32, 'fp32', 90, 0) for name in MIX_AND_GATE_KERNELS),
    ('map', 'mix_and_gate', 64, 'bf16', 80, None),
    ('map', 'mix_and_gate', 40, 'fp32', 89, None),
    ('map', 'taps', 64, 'fp32', 80, None),
    *(('sequence', name, 32, 'fp16', 90, None) for name in MIX_AND_GATE_KERNELS),
]
"""The same kernels for other GPUs, dtypes and head dimensions."""


@pytest.mark.parametrize(
    ('kind', 'name', 'dim', 'dtype', 'capability', 'spilled'),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.by_hand) for case in OTHER_CASES)],
)
def test_a_kernel_fits_on_the_gpu(kind, name, dim, dtype, capability, spilled, tmp_path):
    """Its blocks fit into shared memory, and it spills at most so many bytes of registers."""
    kernel = compiled(kind, name, dim, dtype, capability)
    found = resources(kernel, tmp_path)
    if os.environ.get('MMPOLA_PRINT_RESOURCES'):
        print('\n', found, f'shared {kernel.metadata.shared / 1024:.0f} KB')
    assert kernel.metadata.shared <= KILOBYTES[capability] * 1024
    if spilled is not None:
        assert int(re.search(r'STACK:(\d+)', found)[1]) <= spilled
    if kind == 'power':
        assert 'lg2.approx.ftz.f32' in kernel.asm['ptx']  # one instruction per logarithm


@pytest.mark.parametrize(
    ('kernel', 'constants'),
    [
        (passes.combine_states_kernel, {'BP': 8, 'BR': 8, 'BD': 64, 'HAS_SHIFT': True}),
        (power.power_parameters_kernel, {'BP': 128, 'BC': 128, 'PRECISION': 'tf32'}),
    ],
    ids=['states', 'parameters'],
)
def test_kernels_that_add_parts_compile(kernel, constants):
    ptx = machine_code(kernel, {'D': 64, **constants}, 'fp16', 80, {'num_warps': 4}).asm['ptx']
    assert 'st.global' in ptx


def resources(kernel, folder):
    """Return registers per thread, and bytes of stack per thread, to which registers spill."""
    binary = folder / 'kernel.cubin'
    binary.write_bytes(kernel.asm['cubin'])
    cuobjdump = Path(triton.__file__).parent / 'backends/nvidia/bin/cuobjdump'
    report = subprocess.check_output([cuobjdump, '--dump-resource-usage', binary], text=True)
    return ' '.join(word for word in report.split() if word.startswith(('REG', 'STACK')))


@triton.jit
def split_kernel(p_x, p_a, p_y, BN: tl.constexpr):  # noqa: N803
    """Store both halves of a product, split by the sign of x."""
    o_n = tl.arange(0, BN)
    b_a = tl.load(p_a + o_n)
    b_1, b_2 = split_by_sign(tl.load(p_x + o_n), b_a * b_a)
    tl.store(p_y + o_n, b_1)
    tl.store(p_y + BN + o_n, b_2)


def test_a_split_by_sign_is_not_fused_with_the_product_that_it_splits():
    """A fused difference would leave the product's rounding error in the half that has to be 0."""
    ptx = machine_code(split_kernel, {'BN': 128}, 'fp32', 80, {'num_warps': 4}).asm['ptx']
    assert re.search(r'\bmul\S*f32', ptx)
    assert not re.search(r'\b(fma|sub)\S*f32', ptx)
