"""Checks the fused kernels on this machine's GPUs, and switches them on where they are faster.

    mmpola gpu [--again]                     or: python tools/gpu.py

Processes of their own run every kernel forward and backward, compare it with float64, and time it
against plain PyTorch: a minute with 12 cores, which compile. `backend='auto'` uses the kernels that
are right and faster. The record in ~/.cache/mmpola/kernels is written row by row, so that an
interrupted check goes on where it was, and holds until GPU, torch, triton or the kernels change.
`mmpola train`, `test` and `predict` check by themselves what they need and the record lacks.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse

from mmpola.kernels.check import all_cases
from mmpola.kernels.gate import check_gpu, different_gpus, table
from mmpola.kernels.record import MEASURED_TOKENS, record_key, record_path
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
        key = record_key(device)
        try:
            rows = check_gpu(device, all_cases(), args.again)
        except (OSError, RuntimeError) as error:
            raise UsageError(f'the kernels could not be checked: {error}') from error
        short, long = MEASURED_TOKENS
        print(f'{key["gpu"]}, torch {key["torch"]}, triton {key["triton"]}')
        print(f'times as fast as plain PyTorch, a step at {short:,} / {long:,} tokens:')
        print(table(rows))
        print(f'record: {record_path(key)}')


if __name__ == '__main__':
    run_main(main)
