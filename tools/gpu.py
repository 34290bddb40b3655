"""Checks the fused kernels on this machine's GPUs, and switches them on where they are faster.

    mmpola gpu [--again]                     or: python tools/gpu.py

A process of its own runs every kernel forward and backward, compares it with float64, and times it
against plain PyTorch. `backend='auto'` uses the kernels that are right and faster. The record is
kept in ~/.cache/mmpola/kernels until GPU, torch, triton or the kernels change. `mmpola train`,
`test` and `predict` run the check by themselves if there is no record.
"""

from __future__ import annotations

import mmpola.script  # noqa: F401  before all others

import argparse

from mmpola.kernels import check_gpu, different_gpus, table
from mmpola.messages import UsageError, run_main
from mmpola.ops import triton as backend
from mmpola.ops.kernel_record import MEASURED_TOKENS, record_key, record_path


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
        rows = check_gpu(device, args.again)
        short, long = MEASURED_TOKENS
        print(f'{key["gpu"]}, torch {key["torch"]}, triton {key["triton"]}')
        print(f'times as fast as plain PyTorch, a step at {short:,} / {long:,} tokens:')
        print(table(rows))
        print(f'record: {record_path(key)}')


if __name__ == '__main__':
    run_main(main)
