"""The kernels compiled to machine code, for which no GPU is needed.

MMPOLA_PRINT_RESOURCES=1 with `-s` prints registers, spilled bytes and shared memory as ptxas
reports them: the figures behind mmpola/ops/triton.
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

from mmpola.ops.triton import IS_INTERPRETED, block_of, exp, power
from mmpola.ops.triton.blocks import FUSION_OPTIONS, split_by_sign
from mmpola.ops.triton.mix_and_gate import (
    mix_and_gate_kernel,
    mix_and_gate_taps_kernel,
    plan_tiles,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        IS_INTERPRETED, reason='TRITON_INTERPRET=1 is set: kernels are interpreted, not compiled'
    ),
]

MIX_AND_GATE_KERNELS = {
    'mix_and_gate': mix_and_gate_kernel,
    'mix_and_gate_taps': mix_and_gate_taps_kernel,
}

DTYPES = {'fp16': torch.float16, 'bf16': torch.bfloat16, 'fp32': torch.float32}
TOKENS = ('p_q', 'p_k', 'p_v', 'p_o', 'p_do', 'p_dq', 'p_dk', 'p_dv')
COUNTS = ('heads', 'queries', 'keys', 'tokens', 'rows', 'columns', 'tiles', 'tiles_per_part')
FLOATS = ('eps', 'shrink', 'log2_shrink', 'grow')
ABSENT = {'power': (), 'exp': ('p_cos', 'p_sin', 'p_position'), 'rotary': ('p_position',)}
FLOAT_POINTERS = ('p_weight', 'p_bias', 'p_parts')
KILOBYTES = {80: 163, 89: 99, 90: 227}
"""Shared memory of one block by compute capability: A100, RTX 40, H100."""


@pytest.fixture(autouse=True)
def _fresh_cache(monkeypatch, tmp_path):
    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))


def compiled(name, dim, kind, dtype='fp16', capability=90):
    """Compile a kernel of `polarity_attention` as it is launched."""
    feature_map = power if kind == 'power' else exp
    kernel = feature_map.KERNELS[name]
    precision = 'ieee' if dtype == 'fp32' else 'tf32'
    block = block_of(dim)
    launch = feature_map.launches(precision, kind == 'rotary')[name, block]
    constants = {'D': dim, 'BN': launch.tokens, 'BD': block, 'BC': block_of(dim // 2)}
    constants['PRECISION'] = precision
    constants |= dict.fromkeys(ABSENT[kind])
    types = {**dict.fromkeys(FLOATS, 'fp32'), **dict.fromkeys(TOKENS, '*' + dtype)}
    options = {'num_warps': launch.warps, 'num_stages': launch.stages, **FUSION_OPTIONS}
    return machine_code(kernel, constants, types, capability, options)


def compiled_mix_and_gate(name, dim, dtype='fp16', capability=90, window=(5, 5)):
    """Compile a kernel of `mix_and_gate` as it is launched for the window of a map, or (1, k) of a
    sequence.
    """
    kernel = MIX_AND_GATE_KERNELS[name]
    _, _, options = plan_tiles(torch.Size([1, 9, 1, dim]), DTYPES[dtype], (3, 3), window)
    constants = {**options, 'FLIP': False}
    compiler_options = {name: constants.pop(name) for name in ('num_warps', *FUSION_OPTIONS)}
    types = {
        x: '*' + dtype for x in kernel.arg_names if x.startswith('p_') and x not in FLOAT_POINTERS
    }
    return machine_code(kernel, constants, types, capability, compiler_options)


def machine_code(kernel, constants, types, capability, options):
    """Compile for a GPU that need not be present; arguments without a type are float32 pointers,
    counts or strides.
    """
    signature, aligned = {}, {}
    for i, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = 'constexpr'
        else:
            signature[argument] = types.get(
                argument, '*fp32' if argument.startswith('p_') else 'i32'
            )
            if argument not in (*COUNTS, *FLOATS):
                aligned[(i,)] = [['tt.divisibility', 16]]
    constants = {argument: x for argument, x in constants.items() if argument in signature}
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget('cuda', capability, 32), options=options)


@pytest.mark.parametrize(
    ('name', 'dim', 'kind', 'dtype', 'capability'),
    [
        *((name, 64, 'power', 'fp16', 89) for name in power.KERNELS),
        *((name, 64, 'rotary', 'fp16', 89) for name in exp.KERNELS),
    ],
)
def test_polarity_attention_fits_into_shared_memory(name, dim, kind, dtype, capability, tmp_path):
    check_shared_memory(compiled(name, dim, kind, dtype, capability), capability, tmp_path)


@pytest.mark.parametrize('dim', [32, 64])
@pytest.mark.parametrize('name', power.KERNELS)
def test_power_kernels_are_lean(name, dim, tmp_path):
    """One instruction per logarithm and no spilled registers, at the head dimensions of the
    published models.
    """
    kernel = compiled(name, dim, 'power')
    assert 'lg2.approx.ftz.f32' in kernel.asm['ptx']
    assert 'STACK:0' in resources(kernel, tmp_path)


@pytest.mark.parametrize('dtype', ['fp16', 'fp32'])
@pytest.mark.parametrize('name', MIX_AND_GATE_KERNELS)
def test_tiles_of_mix_and_gate_stay_in_registers(name, dtype, tmp_path):
    assert 'STACK:0' in resources(compiled_mix_and_gate(name, 32, dtype), tmp_path)


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
    ptx = machine_code(split_kernel, {'BN': 128}, {}, 80, {'num_warps': 4}).asm['ptx']
    assert re.search(r'\bmul\S*f32', ptx)
    assert not re.search(r'\b(fma|sub)\S*f32', ptx)


@pytest.mark.parametrize(
    ('dim', 'kind', 'capability'), [(64, 'exp', 90), (64, 'rotary', 80), (64, 'rotary', 90)]
)
def test_query_gradient_of_an_exp_map_keeps_its_sums_in_registers(dim, kind, capability, tmp_path):
    """At most 464 bytes of registers were spilled; with another order of the products it would be
    thousands.
    """
    kernel = compiled('query_gradient', dim, kind, capability=capability)
    assert int(re.search(r'STACK:(\d+)', resources(kernel, tmp_path))[1]) <= 500


@pytest.mark.parametrize(
    ('name', 'dim', 'dtype', 'capability'),
    [
        ('mix_and_gate', 32, 'fp16', 90),
        ('mix_and_gate', 64, 'bf16', 80),
        ('mix_and_gate', 40, 'fp32', 89),
        ('mix_and_gate_taps', 32, 'fp16', 90),
        ('mix_and_gate_taps', 64, 'fp32', 80),
    ],
)
def test_mix_and_gate_fits_into_shared_memory(name, dim, dtype, capability, tmp_path):
    check_shared_memory(compiled_mix_and_gate(name, dim, dtype, capability), capability, tmp_path)


@pytest.mark.parametrize('name', MIX_AND_GATE_KERNELS)
def test_kernels_of_a_sequence_compile(name, tmp_path):
    check_shared_memory(compiled_mix_and_gate(name, 32, window=(1, 5)), 90, tmp_path)


def check_shared_memory(kernel, capability, folder):
    if os.environ.get('MMPOLA_PRINT_RESOURCES'):
        print('\n', resources(kernel, folder), f'shared {kernel.metadata.shared / 1024:.0f} KB')
    assert kernel.metadata.shared <= KILOBYTES[capability] * 1024


def resources(kernel, folder):
    """Return registers per thread, and bytes of stack per thread, to which registers are
    spilled.
    """
    binary = folder / 'kernel.cubin'
    binary.write_bytes(kernel.asm['cubin'])
    cuobjdump = Path(triton.__file__).parent / 'backends/nvidia/bin/cuobjdump'
    report = subprocess.check_output([cuobjdump, '--dump-resource-usage', binary], text=True)
    return ' '.join(word for word in report.split() if word.startswith(('REG', 'STACK')))
