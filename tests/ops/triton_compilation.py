"""The kernels compiled to machine code, for which no GPU is needed. `test_triton.py` runs this file in its own process.

MMPOLA_PRINT_RESOURCES=1 with `-s` prints what ptxas says of each: the figures behind mmpola/ops/triton/launch.py.
"""

import os
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mmpola.ops.triton.epilogue import mix_gradient_kernel, mix_kernel
from mmpola.ops.triton.forward import output_kernel, state_kernel
from mmpola.ops.triton.key_gradient import key_gradient_kernel
from mmpola.ops.triton.launch import LAUNCHES, ONE_PRODUCT_STATE, TILES
from mmpola.ops.triton.query_gradient import query_gradient_kernel

KERNELS = {
    'state': state_kernel,
    'output': output_kernel,
    'query_gradient': query_gradient_kernel,
    'key_gradient': key_gradient_kernel,
}
TOKENS = ('p_q', 'p_k', 'p_v', 'p_o', 'p_do', 'p_dq', 'p_dk', 'p_dv')
COUNTS = ('heads', 'queries', 'keys', 'tokens')
FLOATS = ('eps', 'shrink', 'grow')
ABSENT = {
    'power': ('p_same', 'p_opposite', 'p_shift', 'p_cos', 'p_sin'),
    'exp': ('p_exponent', 'p_scale', 'p_cos', 'p_sin', 'p_position'),
    'exp, rotary': ('p_exponent', 'p_scale', 'p_position'),
}
KILOBYTES = {80: 163, 89: 99, 90: 227}
"""Shared memory of one block by compute capability: A100, RTX 40, H100."""


EPILOGUE_KERNELS = {'mix': mix_kernel, 'mix_gradient': mix_gradient_kernel}
EPILOGUE_COUNTS = ('heads', 'rows', 'columns')
EPILOGUE_FLOATS = ('p_weight', 'p_bias', 'p_parts')


def compiled(name, dim, kind, dtype='fp16', capability=90):
    kernel = KERNELS[name]
    block, channels = (max(16, triton.next_power_of_2(d)) for d in (dim, dim // 2))
    launch = LAUNCHES[name][block]
    constants = {'D': dim, 'BN': launch.tokens, 'BD': block, 'BC': channels}
    constants['PRECISION'] = 'ieee' if dtype == 'fp32' else 'tf32'
    constants |= dict.fromkeys(ABSENT[kind])
    if name == 'key_gradient' and block >= ONE_PRODUCT_STATE:
        constants['p_dv'] = None
    types = {
        **dict.fromkeys(FLOATS, 'fp32'),
        **dict.fromkeys(COUNTS, 'i32'),
        **dict.fromkeys(TOKENS, '*' + dtype),
    }
    options = {'num_warps': launch.warps, 'num_stages': 1 if 'rotary' in kind else launch.stages}
    return machine_code(kernel, constants, types, capability, options)


def compiled_epilogue(name, dim, dtype='fp16', capability=90, kernel_size=5):
    kernel = EPILOGUE_KERNELS[name]
    block = min(32, max(16, triton.next_power_of_2(dim)))
    tile = TILES[name][block]
    constants = {'D': dim, 'K': kernel_size, 'BR': tile.rows, 'BW': tile.columns, 'BD': block, 'FLIP': False}
    types = {**dict.fromkeys(EPILOGUE_COUNTS, 'i32'), **dict.fromkeys(EPILOGUE_FLOATS, '*fp32')}
    types |= {x: '*' + dtype for x in kernel.arg_names if x.startswith('p_') and x not in EPILOGUE_FLOATS}
    return machine_code(kernel, constants, types, capability, {'num_warps': tile.warps})


def machine_code(kernel, constants, types, capability, options):
    """Compile for a GPU that need not be there; arguments without a type are float32 pointers or strides."""
    signature, aligned = {}, {}
    for i, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = 'constexpr'
        else:
            signature[argument] = types.get(argument, '*fp32' if argument.startswith('p_') else 'i32')
            if argument not in (*COUNTS, *EPILOGUE_COUNTS, *FLOATS):
                aligned[(i,)] = [['tt.divisibility', 16]]
    constants = {argument: x for argument, x in constants.items() if argument in signature}
    source = ASTSource(kernel, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget('cuda', capability, 32), options=options)


CASES = [
    *((name, 64, 'power', 'fp16', 90) for name in KERNELS),
    *((name, 32, 'exp, rotary', 'bf16', 89) for name in KERNELS),
    *((name, 128, 'power', 'fp16', 80) for name in ('output', 'key_gradient')),
]


EPILOGUE_CASES = [
    ('mix', 32, 'fp16', 90),
    ('mix', 64, 'bf16', 80),
    ('mix', 40, 'fp32', 89),
    ('mix_gradient', 32, 'fp16', 90),
    ('mix_gradient', 64, 'fp32', 80),
    ('mix_gradient', 96, 'bf16', 89),
]


@pytest.mark.parametrize(('name', 'dim', 'kind', 'dtype', 'capability'), CASES)
def test_compiles_into_the_shared_memory_there_is(name, dim, kind, dtype, capability, tmp_path):
    fits(compiled(name, dim, kind, dtype, capability), capability, tmp_path)


@pytest.mark.parametrize(('name', 'dim', 'dtype', 'capability'), EPILOGUE_CASES)
def test_epilogue_compiles_into_the_shared_memory_there_is(name, dim, dtype, capability, tmp_path):
    fits(compiled_epilogue(name, dim, dtype, capability), capability, tmp_path)


def fits(kernel, capability, folder):
    if os.environ.get('MMPOLA_PRINT_RESOURCES'):
        print('\n', resources(kernel, folder), f'shared {kernel.metadata.shared / 1024:.0f} KB')
    assert kernel.metadata.shared <= KILOBYTES[capability] * 1024


def resources(kernel, folder):
    binary = folder / 'kernel.cubin'
    binary.write_bytes(kernel.asm['cubin'])
    cuobjdump = Path(triton.__file__).parent / 'backends/nvidia/bin/cuobjdump'
    said = subprocess.check_output([cuobjdump, '--dump-resource-usage', binary], text=True)
    return ' '.join(word for word in said.split() if word.startswith(('REG', 'STACK')))
