"""Check the kernels on the GPU of this machine, then measure training steps and the operator.

    python -m benchmarks.gpu [--only checks|networks|operator] [--results FOLDER]
    python -m benchmarks.gpu --sweep power|rotary D    times other launches of the kernels
    python -m benchmarks.gpu --dry-run                 tiny shapes on a CPU; the times are made up

Writes run.json and report.md into benchmarks/results/GPU after each row. If the run is interrupted,
the same command goes on where it was. The exit status is 1 if a row has a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.records import ROOT, Row, commit, results_folder, source_hash, table, version

PARTS = ('checks', 'networks', 'operator')
PACKAGES = ('torch', 'triton', 'timm', 'mmdet', 'flash_bla')

COMMAND = (sys.executable, '-m', 'benchmarks.gpu.child')
"""The child process."""

BYTES_PER_CHILD = 2**33
"""Memory of the GPU for each process that compiles, and runs a training step once."""

NOTES = """Columns of other implementations are their time over ours: above 1, ours is faster. Their
own times, GPU times and memory are in run.json. 'GPU busy' is the time of the kernels of one run:
the rest of its time, the GPU waits for Python. GB is the peak of a run, without tensors that exist
before it (weights, optimizer state, inputs). 'step' is forward and backward; 'training step' is
forward, backward and AdamW. A row compares all networks eager, or all compiled."""

MADE_UP = '**Dry run on a CPU: all times and memory sizes below are MADE UP.**'


def main() -> None:
    parser = argparse.ArgumentParser(
        prog='python -m benchmarks.gpu', description=(__doc__ or '').splitlines()[0]
    )
    parser.add_argument('--only', choices=PARTS, help='one part of the run (default: all)')
    parser.add_argument(
        '--sweep', nargs=2, metavar=('MAP', 'D'), help='power or rotary, and channels per head'
    )
    parser.add_argument(
        '--dry-run', action='store_true', help='tiny shapes on a CPU, with times that are made up'
    )
    parser.add_argument('--results', type=Path, metavar='FOLDER')
    args = parser.parse_args()
    if args.dry_run:
        os.environ['TRITON_INTERPRET'] = '1'  # before Triton is imported, here and in the children
    sys.exit(run(args))


def run(args: argparse.Namespace) -> int | str:
    """Run the parts and return the exit status, or a line that says why nothing can run."""
    import torch
    from filelock import FileLock

    from mmpola.ops import triton as backend

    reasons = backend.missing()
    if reasons:
        return f'error: no GPU to measure: {"; ".join(reasons)}; --dry-run needs none'
    gpu = 'dry run' if args.dry_run else torch.cuda.get_device_name()
    folder = args.results or results_folder(gpu)
    if args.dry_run and not args.results:
        folder = ROOT / 'work_dirs' / 'gpu-dry-run'
    key = {'gpu': gpu, 'times are made up': args.dry_run, 'commit': commit()}
    key['source'] = source_hash()
    for package in PACKAGES:
        key[package] = version(package)
    key['torch'] = torch.__version__  # with its CUDA version
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Two runs at once would time each other.
        with FileLock(Path(tempfile.gettempdir()) / f'mmpola-benchmarks-{os.getuid()}.lock'):
            record = measure_all(args, folder, key)
    except (OSError, RuntimeError) as error:
        return f'error: {error}; what was measured is in {folder}'
    except KeyboardInterrupt:
        return f'interrupted; what was measured is in {folder}'
    print(f'written to {folder}')
    return int(any(row['failure'] for rows in record.values() for row in rows))


def measure_all(
    args: argparse.Namespace, folder: Path, key: dict[str, Any]
) -> dict[str, list[Row]]:
    """Measure the rows that the record of a folder lacks, and return all rows by part.

    Raises:
        OSError: the record cannot be written.
        RuntimeError: no process can start, or somebody has stopped one.
    """
    from benchmarks.gpu.stages import measure

    record = read_record(folder, key)
    wanted = {}
    for part, rows in rows_of_parts(args).items():
        right = [row for row in record.setdefault(part, []) if not row['failure']]
        wanted[part] = [row for row in rows if not any(is_of(found, row) for found in right)]
    if not any(wanted.values()):
        return record
    count = number_of_children(args.dry_run)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault('TORCHINDUCTOR_COMPILE_THREADS', str(max(1, cores // count)))
    for part, rows in wanted.items():
        with closing(measure(part.split()[0], rows, COMMAND, count, args.dry_run)) as found_rows:
            for row in found_rows:
                (same,) = [wanted_row for wanted_row in rows if is_of(row, wanted_row)]
                others = [found for found in record[part] if not is_of(found, same)]
                record[part] = [*others, row]
                write_record(folder, key, record)
                print(table([row]).splitlines()[-1], flush=True)
    return record


def rows_of_parts(args: argparse.Namespace) -> dict[str, list[Row]]:
    """Return what tells the wanted rows from others, by part."""
    from benchmarks.gpu.checks import check_rows
    from benchmarks.gpu.networks import network_rows
    from benchmarks.gpu.operator import operator_rows
    from benchmarks.gpu.sweep import launch_rows

    if args.sweep:
        feature_map, dim = args.sweep
        return {f'launches {feature_map} {dim}': launch_rows(feature_map, int(dim), args.dry_run)}
    functions = {'checks': check_rows, 'networks': network_rows, 'operator': operator_rows}
    parts = [args.only] if args.only else PARTS
    return {part: functions[part](args.dry_run) for part in parts}


def number_of_children(dry_run: bool) -> int:
    """Return how many processes compile side by side."""
    import torch

    from mmpola.kernels import gate

    if dry_run:
        return 2
    return gate.number_of_children(torch.device('cuda'), BYTES_PER_CHILD)


def is_of(row: Row, wanted: Row) -> bool:
    """Whether a row has all values that tell the wanted one from others."""
    return row.items() >= wanted.items()


def read_record(folder: Path, key: dict[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of a folder's record by part; none if it is damaged or of another version."""
    try:
        content = json.loads((folder / 'run.json').read_text())
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    for name, value in key.items():
        if name != 'commit' and content.get(name) != value:  # a commit may change only pages
            return {}
    return {name: rows for name, rows in content.items() if name not in key}


def write_record(folder: Path, key: dict[str, Any], record: dict[str, list[Row]]) -> None:
    """Write run.json and report.md, each whole or not at all."""
    from mmpola.files import write_atomically

    content = json.dumps(key | record, indent=1) + '\n'
    write_atomically(folder / 'run.json', content)
    write_atomically(folder / 'report.md', report(key, record))


def report(key: dict[str, Any], record: dict[str, list[Row]]) -> str:
    """Return the report of a run in Markdown."""
    from benchmarks.gpu.sweep import fastest

    versions = [f'commit {key["commit"]}']
    for package in PACKAGES:
        versions.append(f'{package} {key[package] or "not installed"}')
    text = [f'# {key["gpu"]}', f'{", ".join(versions)}.']
    if key['times are made up']:
        text.append(MADE_UP)
    text.append(NOTES)
    for part, rows in record.items():
        if part.startswith('launches'):
            rows = fastest(rows)
        if rows:
            text.append(f'## {part.capitalize()}\n\n{table(rows)}')
    return '\n\n'.join(text) + '\n'


if __name__ == '__main__':
    main()
