"""Part 2: find the fastest launches, and write them as a launch table that the operators pick
up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.cases import ATTENTION, Case
from benchmarks.gpu import candidates
from benchmarks.gpu.candidates import Launch, estimate, launches_to_try, limits, resident_programs
from benchmarks.gpu.checks import Call, gate
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
"""The variant with the launch that the table lacks, which launch.py has."""

TIMED = 4
"""Launches of each kernel that are timed, besides today's: the best on paper."""

SPLITS = [
    {'waves': 0.5},
    {'waves': 2.0},
    {'waves': 3.0},
    {'share': 15.0},
    {'share': 30.0},
    {'share': 100.0},
]
"""Multiples of the programs per multiprocessor, and shares of partial states, tried for all kernels
of a target.
"""

WORTHWHILE = 0.02
"""A launch replaces today's if it takes less time by this share, and by more than the spread of
both.
"""


@dataclass(frozen=True)
class Target:
    """Kernels that are tuned together, because one job compiles them all.

    Args:
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
    def block(self) -> int:
        """BD of the kernels."""
        dim = max(16, self.cases[0].dim)
        return min(32, dim) if self.feature_map == 'any' else dim

    @property
    def name(self) -> str:
        return f'{self.feature_map} {str(self.dtype).removeprefix("torch.")} {self.block}'

    @property
    def keys(self) -> list[Key]:
        """The keys of the launches."""
        kernels = [
            name
            for name, fields in LAUNCH_FIELDS.items()
            if (fields == TILE_FIELDS) == (self.feature_map == 'any')
        ]
        return [Key.of(kernel, self.feature_map, self.dtype, self.block) for kernel in kernels]

    @property
    def gate(self) -> Call:
        """The call that a launch must compute correctly before it is timed."""
        return gate(self.feature_map, self.dtype, self.cases[0].dim, self.dry_run)

    @property
    def candidates(self) -> list[Launch]:
        """The launches to compile."""
        fields = candidates.TILES if self.feature_map == 'any' else candidates.ATTENTION
        return launches_to_try(fields, self.block)[: 2 if self.dry_run else None]

    def today(self, key: Key, device: torch.device) -> Launch:
        """Return the launch of launch.py, where no table is used."""
        if self.feature_map == 'any':
            return asdict(find_tile(key.kernel, self.dtype, key.block, device))
        return asdict(find_launch(key.kernel, key.feature_map, self.dtype, key.block, device))

    def steps(self, device: torch.device) -> list[Run]:
        """Return forward + backward of each case, ready to run."""
        operator = 'mix_and_gate' if self.feature_map == 'any' else 'attention'
        return [triton_step(operator, case, device.type, self.dtype) for case in self.cases]


def targets(dry_run: bool) -> list[Target]:
    """Return what is tuned, the most important first."""
    if dry_run:
        power, exp = (Case('tiny', feature_map, 1, 3, 6, 1, 16) for feature_map in ('power', 'exp'))
        return [
            Target('power', torch.float16, (power,), True),
            Target('any', torch.float16, (exp,), True),
        ]
    cases = {case.name: case for case in ATTENTION['cuda']}
    found = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for feature_map, model in (
            ('power', 'Pola-Swin-T'),
            ('power', 'Pola-PVT-T'),
            ('rotary', 'PolaFormer++ b2'),
        ):
            named = [
                cases[f'{model} stage 1, {size}']
                for size in ('224x224, batch 64', '800x1333, batch 2')
            ]
            found.append(Target(feature_map, dtype, tuple(named)))
        found.append(Target('any', dtype, found[-2].cases))
    return found


def tune(
    session: Session, target: Target, compilations: Sequence[Future[list[Binary]]]
) -> dict[str, Any]:
    """Choose the launch of each kernel of a target, then the split of the tokens over programs for
    all together.

    Args:
        compilations: of the target's candidates, in their order.

    Returns:
        `launches` by key, the choices `kernels` and `split`, how many launches were `tried`, and
        `not compiled`.

    Raises:
        RuntimeError: no launch could be compiled, or today's compute a wrong result.
    """
    ended = wait(compilations, session.left(SHARES['tuning'])).done
    launches = target.candidates
    pairs = [(launch, x) for launch, x in zip(launches, compilations, strict=True) if x in ended]
    compiled = [(launch, x.result()) for launch, x in pairs if not x.exception()]
    if failures := [first_line(error) for _, x in pairs if (error := x.exception())]:
        session.say(
            f'{target.name}: {len(failures)} of {len(pairs)} compilations failed, '
            f'the first by {failures[0]}'
        )
    if not compiled:
        raise RuntimeError(
            f'none of {len(launches)} launches could be compiled; {"".join(failures[:1])}'
        )
    if failure := session.checker.check(target.gate, {})['failure']:
        raise RuntimeError(f"today's launches: {failure}")  # whole steps run here, with them
    kernels = {key: _tune_kernel(session, target, key, compiled) for key in target.keys}
    found: dict[str, Any] = {'tried': len(launches), 'not compiled': len(launches) - len(compiled)}
    found['kernels'] = {str(key): kernel for key, kernel in kernels.items()}
    table = {key: kernel['launch'] for key, kernel in kernels.items()}
    if target.feature_map != 'any':
        found['split'] = _tune_split(session, target, table)
        table = changed(table, found['split']['launch'])
    found['launches'] = {
        str(key): {**launch, 'timings': kernels[key]['timings']} for key, launch in table.items()
    }
    return found


def rank(
    key: Key, compiled: list[tuple[Launch, list[Binary]]], device: torch.device
) -> list[Launch]:
    """Return the launches with which a kernel fits on the GPU, the best on paper first.

    If the kernel's launches have `waves`, then as many programs as fit on a multiprocessor.

    Args:
        compiled: each launch, and what the compiler said about all kernels with it.
    """
    gpu, costs = limits(device), []
    for launch, every in compiled:
        binaries = [x for x in every if x.kernel == key.kernel]
        cost = max((estimate(x, launch, key.block, gpu) for x in binaries), default=math.inf)
        if cost < math.inf:
            waves = (
                {'waves': min(resident_programs(x, gpu) for x in binaries)}
                if 'waves' in launch
                else {}
            )
            costs.append((cost, {**launch, **waves}))
    return [launch for _, launch in sorted(costs, key=lambda pair: pair[0])]


def _tune_kernel(
    session: Session, target: Target, key: Key, compiled: list[tuple[Launch, list[Binary]]]
) -> dict[str, Any]:
    """Time a kernel with today's launch and the best others on paper that compute the right
    result.
    """
    today, ranked = target.today(key, session.device), rank(key, compiled, session.device)
    best = [launch for launch in ranked if launch != today][: 1 if session.dry_run else TIMED]
    step = target.steps(session.device)[0]
    launches = {
        TODAY: today,
        **{' '.join(f'{field}={value}' for field, value in x.items()): x for x in best},
    }
    variants, rejected = {}, {}
    for name, launch in launches.items():
        if launch is not today and (
            failure := session.checker.check(target.gate, {key: launch})['failure']
        ):
            rejected[name] = failure
            continue
        with use_table({key: launch}), recorded() as launched:
            step()
        variants[name] = partial(_run_all, [x.run for x in launched if x.kernel == key.kernel])
    timings = interleaved_device_seconds(variants, session.device.type, session.rounds(30))
    return {'ranked': len(ranked), **choose(timings, launches), 'rejected': rejected}


def _tune_split(session: Session, target: Target, table: LaunchTable) -> dict[str, Any]:
    """Choose the change of `SPLITS` of all kernels' launches that makes whole steps fastest, those
    of all cases.
    """
    device, steps = session.device, target.steps(session.device)
    choices = {
        TODAY: {},
        **{str(split): split for split in SPLITS[: 1 if session.dry_run else None]},
    }
    variants = {
        name: graphed(use_table(changed(table, split))(partial(_run_all, steps)), device.type)
        for name, split in choices.items()
    }
    return choose(interleaved_device_seconds(variants, device.type, session.rounds(20)), choices)


def _run_all(runs: list[Run]) -> None:
    for run in runs:
        run()


def choose(timings: dict[str, Timing], launch_of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the launch of the shortest time; today's, unless another is faster by more than noise.

    Returns:
        `launch`, its name, `chosen`, and the evidence: all `timings`, the shortest first.
    """
    order = sorted(timings, key=lambda name: timings[name].seconds)
    best, today = timings[order[0]], timings[TODAY]
    is_faster = today.seconds - best.seconds > max(
        WORTHWHILE * today.seconds, best.spread, today.spread
    )
    chosen = order[0] if is_faster else TODAY
    evidence = {name: timings[name]._asdict() for name in order}
    return {'launch': launch_of[chosen], 'chosen': chosen, 'timings': evidence}


def changed(table: LaunchTable, split: Mapping[str, float]) -> LaunchTable:
    """Return launches with a change of `SPLITS`, within the limits of launch tables."""
    least, most = LIMITS['waves']
    found = {key: dict(launch) for key, launch in table.items()}
    for launch in found.values() if split else ():
        launch['waves'] = min(most, max(least, round(split.get('waves', 1) * launch['waves'])))
        launch['share'] = int(split.get('share', launch['share']))
    return found


def table_content(session: Session) -> dict[str, Any]:
    """Return the launch table of all results as a file has it, with what was measured beside each
    launch.
    """
    tuned = session.results('tuning').values()
    launches = {
        name: launch for found in tuned for name, launch in found.get('launches', {}).items()
    }
    return {'format': FORMAT, **session.environment, 'launches': launches}
