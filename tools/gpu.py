"""Checks the fused kernels on this machine's GPUs, and switches them on where they are faster.

    mmpola gpu [--again]                     or: python tools/gpu.py

Processes of their own run every kernel forward and backward, compare it with float64, and time it
against plain PyTorch: a minute with 12 cores, which compile. `backend='auto'` uses the kernels that
are right and faster. The record in ~/.cache/mmpola/kernels holds until GPU, torch, triton or the
kernels change, and an interrupted check keeps what it has found.
`mmpola train`, `test` and `predict` check by themselves what they need and the record lacks.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
import importlib.metadata

import torch

from mmpola.kernels.check import TIMED, all_cases
from mmpola.kernels.gate import check_gpu, different_gpus, table
from mmpola.kernels.record import record_path
from mmpola.messages import UsageError, run_main
from mmpola.ops import triton as backend


def main() -> None:
    parser = argparse.ArgumentParser(
        description='Check the fused kernels on the GPUs of this machine, and switch them on'
    )
    parser.add_argument(
        '--again', action='store_true', help='check again although there is a record'
    )
    args = parser.parse_args()
    reasons = backend.missing()
    if reasons:
        raise UsageError(f'no GPU to check: {"; ".join(reasons)}')
    for device in different_gpus():
        try:
            results = check_gpu(device, all_cases(), args.again)
        except (OSError, RuntimeError) as error:
            raise UsageError(f'the kernels could not be checked: {error}') from error
        short, long = TIMED
        name = torch.cuda.get_device_name(device)
        triton = importlib.metadata.version('triton')
        print(f'{name}, torch {torch.__version__}, triton {triton}')
        print(f'times as fast as plain PyTorch, a step at {short:,} / {long:,} tokens:')
        print(table(results))
        print(f'record: {record_path(device)}')


if __name__ == '__main__':
    run_main(main)
