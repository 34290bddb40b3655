"""Part 2: find the fastest launches, for a launch table that the operators use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.cases import ATTENTION, Case
from benchmarks.gpu.candidates import (
    ATTENTION_VALUES,
    TILE_VALUES,
    Launch,
    estimate,
    launches_to_try,
    limits,
    resident_programs,
)
from benchmarks.gpu.checks import CheckedCall, call_before_timing
from benchmarks.gpu.launches import Binary, recorded
from benchmarks.gpu.session import SHARES, Session
from benchmarks.measure import Run, Timing, graphed, interleaved_device_seconds
from benchmarks.operators import triton_step
from mmpola.messages import first_line
from mmpola.ops.triton.launch import find_launch, find_tile
from mmpola.ops.triton.tables import (
    FORMAT,
    LAUNCH_FIELDS,
    LIMITS,
    TILE_FIELDS,
    Key,
    LaunchTable,
    use_table,
)

TODAY = 'today'
"""The variant with the launch of launch.py, which is used where no table has one."""

TIMED_CANDIDATES = 4
"""Launches of each kernel that are timed, besides today's: the best on paper."""

KERNEL_ROUNDS = 30
SPLIT_ROUNDS = 20
"""Rounds in which launches of a kernel, and changes of `SPLITS`, are timed."""

TINY_CASES = {
    'power': Case('tiny', 'power', 1, 3, 6, 1, 16),
    'exp': Case('tiny', 'exp', 1, 3, 6, 1, 16),
}

SPLITS = [
    {'waves': 0.5},
    {'waves': 2.0},
    {'waves': 3.0},
    {'share': 15.0},
    {'share': 30.0},
    {'share': 100.0},
]
"""Changes that are tried for all kernels of a target together.

`waves` multiplies the programs per multiprocessor, `share` is a share of partial states.
"""

WORTHWHILE = 0.02
"""A launch replaces today's if it saves this share of its time, and more than both spreads."""


@dataclass(frozen=True)
class Target:
    """Kernels that are tuned together, because one job compiles them all.

    Attributes:
        feature_map: 'power', 'rotary', or 'any' for `mix_and_gate`.
        dtype: of the tokens.
        cases: of benchmarks/cases.py; kernels are timed on the first, whole steps on all.
        dry_run: whether few launches are tried, on tiny shapes.
    """

    feature_map: str
    dtype: torch.dtype
    cases: tuple[Case, ...]
    dry_run: bool = False

    @property
    def is_mix_and_gate(self) -> bool:
        return self.feature_map == 'any'

    @property
    def block(self) -> int:
        """BD of the kernels."""
        dim = max(16, self.cases[0].dim)
        if self.is_mix_and_gate:
            return min(32, dim)
        return dim

    @property
    def name(self) -> str:
        return f'{self.feature_map} {str(self.dtype).removeprefix("torch.")} {self.block}'

    @property
    def keys(self) -> list[Key]:
        """The keys of the launches."""
        keys = []
        for kernel, fields in LAUNCH_FIELDS.items():
            has_tiles = fields == TILE_FIELDS
            if has_tiles == self.is_mix_and_gate:
                keys.append(Key.of(kernel, self.feature_map, self.dtype, self.block))
        return keys

    @property
    def call_before_timing(self) -> CheckedCall:
        """The call that a launch must compute correctly before it is timed."""
        return call_before_timing(self.feature_map, self.dtype, self.cases[0].dim, self.dry_run)

    @property
    def candidates(self) -> list[Launch]:
        """The launches to compile."""
        values = TILE_VALUES if self.is_mix_and_gate else ATTENTION_VALUES
        launches = launches_to_try(values, self.block)
        if self.dry_run:
            return launches[:2]
        return launches

    def today(self, key: Key, device: torch.device) -> Launch:
        """Return the launch of launch.py, where no table is used."""
        if self.is_mix_and_gate:
            return asdict(find_tile(key.kernel, self.dtype, key.block, device))
        return asdict(find_launch(key.kernel, key.feature_map, self.dtype, key.block, device))

    def steps(self, device: torch.device) -> list[Run]:
        """Return the forward and backward pass of each case, ready to run."""
        operator = 'mix_and_gate' if self.is_mix_and_gate else 'attention'
        return [triton_step(operator, case, device.type, self.dtype) for case in self.cases]


def tuning_targets(dry_run: bool) -> list[Target]:
    """Return what is tuned, the most important first."""
    if dry_run:
        return [
            Target('power', torch.float16, (TINY_CASES['power'],), dry_run=True),
            Target('any', torch.float16, (TINY_CASES['exp'],), dry_run=True),
        ]
    cases = {case.name: case for case in ATTENTION['cuda']}

    def stage_1(model: str) -> tuple[Case, Case]:
        small = cases[f'{model} stage 1, 224x224, batch 64']
        large = cases[f'{model} stage 1, 800x1333, batch 2']
        return small, large

    targets = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        targets.append(Target('power', dtype, stage_1('Pola-Swin-T')))
        targets.append(Target('power', dtype, stage_1('Pola-PVT-T')))
        targets.append(Target('rotary', dtype, stage_1('PolaFormer++ b2')))
        targets.append(Target('any', dtype, stage_1('Pola-PVT-T')))
    return targets


def tune(
    session: Session, target: Target, compilations: Sequence[Future[list[Binary]]]
) -> dict[str, Any]:
    """Choose the launch of each kernel of a target, then one of `SPLITS` for all of them.

    Args:
        session: the run.
        target: the kernels.
        compilations: of the target's candidates, in their order.

    Returns:
        `launches` by key, the choices `kernels` and `split`, how many launches were `tried`, and
        `not compiled`.

    Raises:
        RuntimeError: no launch could be compiled, or today's compute a wrong result.
    """
    ended = wait(compilations, session.left(SHARES['tuning'])).done
    launches = target.candidates
    compiled = []
    failures = []
    for launch, compilation in zip(launches, compilations, strict=True):
        if compilation not in ended:
            continue
        error = compilation.exception()
        if error:
            failures.append(first_line(error))
        else:
            compiled.append((launch, compilation.result()))
    if failures:
        session.say(
            f'{target.name}: {len(failures)} of {len(failures) + len(compiled)} compilations '
            f'failed, the first by {failures[0]}'
        )
    if not compiled:
        first_failure = failures[0] if failures else 'out of time'
        raise RuntimeError(f'none of {len(launches)} launches could be compiled; {first_failure}')
    # Whole steps run in this process with today's launches.
    failure = session.checker.check(target.call_before_timing, {})['failure']
    if failure:
        raise RuntimeError(f"today's launches: {failure}")

    kernels = {}
    table: LaunchTable = {}
    for key in target.keys:
        kernels[key] = _tune_kernel(session, target, key, compiled)
        table[key] = kernels[key]['launch']
    found: dict[str, Any] = {
        'tried': len(launches),
        'not compiled': len(launches) - len(compiled),
        'kernels': {str(key): kernel for key, kernel in kernels.items()},
    }
    if not target.is_mix_and_gate:
        found['split'] = _tune_split(session, target, table)
        table = changed(table, found['split']['launch'])
    found['launches'] = {}
    for key, launch in table.items():
        found['launches'][str(key)] = {**launch, 'timings': kernels[key]['timings']}
    return found


def rank(
    key: Key, compiled: list[tuple[Launch, list[Binary]]], device: torch.device
) -> list[Launch]:
    """Return the launches with which a kernel fits on the GPU, the best on paper first.

    `waves`, if launches of this kernel have it, is the number of programs that fit on a
    multiprocessor.

    Args:
        key: of the kernel.
        compiled: each launch, and what the compiler reports of all kernels with it.
        device: the GPU.
    """
    gpu = limits(device)
    costs = []
    launches = []
    for launch, binaries_of_target in compiled:
        binaries = [binary for binary in binaries_of_target if binary.kernel == key.kernel]
        estimates = [estimate(binary, launch, key.block, gpu) for binary in binaries]
        cost = max(estimates, default=math.inf)
        if cost == math.inf:
            continue
        ranked = dict(launch)
        if 'waves' in launch:
            ranked['waves'] = min(resident_programs(binary, gpu) for binary in binaries)
        costs.append(cost)
        launches.append(ranked)
    order = sorted(range(len(costs)), key=costs.__getitem__)
    return [launches[index] for index in order]


def _tune_kernel(
    session: Session, target: Target, key: Key, compiled: list[tuple[Launch, list[Binary]]]
) -> dict[str, Any]:
    """Choose between a kernel's launch of today and the best others on paper, by their times.

    A launch with which the kernel computes a wrong result is rejected.
    """
    today = target.today(key, session.device)
    ranked = rank(key, compiled, session.device)
    others = [launch for launch in ranked if launch != today]
    launches = {TODAY: today}
    number = 1 if session.dry_run else TIMED_CANDIDATES
    for launch in others[:number]:
        name = ' '.join(f'{field}={value}' for field, value in launch.items())
        launches[name] = launch

    step = target.steps(session.device)[0]
    variants = {}
    rejected = {}
    for name, launch in launches.items():
        if name != TODAY:
            checked = session.checker.check(target.call_before_timing, {key: launch})
            if checked['failure']:
                rejected[name] = checked['failure']
                continue
        with use_table({key: launch}), recorded() as launched:
            step()
        runs = [each.run for each in launched if each.kernel == key.kernel]
        variants[name] = partial(_run_all, runs)
    rounds = session.rounds(KERNEL_ROUNDS)
    timings = interleaved_device_seconds(variants, session.device.type, rounds)
    return {'ranked': len(ranked), **choose(timings, launches), 'rejected': rejected}


def _tune_split(session: Session, target: Target, table: LaunchTable) -> dict[str, Any]:
    """Choose the change of `SPLITS` with which whole steps of all cases are fastest."""
    device_type = session.device.type
    choices: dict[str, dict[str, float]] = {TODAY: {}}
    splits = SPLITS[:1] if session.dry_run else SPLITS
    for split in splits:
        choices[str(split)] = split
    steps = target.steps(session.device)
    variants = {}
    for name, split in choices.items():
        run = partial(_run_with_table, changed(table, split), steps)
        variants[name] = graphed(run, device_type)
    timings = interleaved_device_seconds(variants, device_type, session.rounds(SPLIT_ROUNDS))
    return choose(timings, choices)


def _run_with_table(table: LaunchTable, runs: list[Run]) -> None:
    with use_table(table):
        _run_all(runs)


def _run_all(runs: list[Run]) -> None:
    for run in runs:
        run()


def choose(timings: dict[str, Timing], launch_of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the launch of the shortest time; today's, unless another is faster by more than noise.

    Returns:
        `launch`, its name, `chosen`, and the evidence: all `timings`, the shortest first.
    """
    order = sorted(timings, key=lambda name: timings[name].seconds)
    best = timings[order[0]]
    today = timings[TODAY]
    noise = max(WORTHWHILE * today.seconds, best.spread, today.spread)
    chosen = TODAY
    if today.seconds - best.seconds > noise:
        chosen = order[0]
    evidence = {name: timings[name]._asdict() for name in order}
    return {'launch': launch_of[chosen], 'chosen': chosen, 'timings': evidence}


def changed(table: LaunchTable, split: Mapping[str, float]) -> LaunchTable:
    """Return launches with a change of `SPLITS`, within the limits of launch tables."""
    least, most = LIMITS['waves']
    new_table = {}
    for key, launch in table.items():
        new_launch = dict(launch)
        if 'waves' in split:
            waves = round(split['waves'] * launch['waves'])
            new_launch['waves'] = min(max(waves, least), most)
        if 'share' in split:
            new_launch['share'] = int(split['share'])
        new_table[key] = new_launch
    return new_table


def table_content(session: Session) -> dict[str, Any]:
    """Return the content of a launch table file: all results, each launch with its timings."""
    launches = {}
    for found in session.results('tuning').values():
        launches.update(found.get('launches', {}))
    return {'format': FORMAT, **session.environment, 'launches': launches}
