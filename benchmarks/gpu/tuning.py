"""Part 2: find the fastest launches, and write them as a launch table that the operators pick up."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import ATTENTION, Case
from benchmarks.gpu.candidates import Hardware, Launch, attention_launches, estimate, tiles
from benchmarks.gpu.compiling import Compiler
from benchmarks.gpu.correctness import check, gate
from benchmarks.gpu.launches import Binary, recorded
from benchmarks.gpu.session import Item, Session
from benchmarks.measure import Run, Timing, graphed, interleaved_device_seconds
from benchmarks.operators import attention_call, forward_and_step, mix_and_gate_call
from mmpola.checkpoint.write import write_atomically
from mmpola.ops import mix_and_gate, polarity_attention
from mmpola.ops.triton.launch import find_launch, find_tile
from mmpola.ops.triton.tables import FIELDS, FORMAT, TILE_FIELDS, Key, LaunchTable, use_table

TODAY = 'today'
"""The variant with the launch that the table lacks, which launch.py has."""

TIMED = 4
"""Launches of each kernel that are timed, besides today's: the best on paper."""

WAVES = (0.5, 1.5, 2.0, 3.0, 4.0)
"""Multiples of the number of programs per multiprocessor that are tried for all kernels of a target together."""

WORTHWHILE = 0.02
"""A launch replaces today's if it takes less time by this share, and by more than the spread of both."""


@dataclass(frozen=True)
class Target:
    """Kernels that are tuned together, because one job compiles them all.

    Args:
        feature_map: 'power', 'rotary', or 'any' for `mix_and_gate`.
        dtype: of the tokens.
        cases: of benchmarks/cases.py; kernels are timed on the first, whole steps on all.
    """

    feature_map: str
    dtype: torch.dtype
    cases: tuple[Case, ...]

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
        kernels = [name for name, fields in FIELDS.items() if (fields == TILE_FIELDS) == (self.feature_map == 'any')]
        return [Key.of(kernel, self.feature_map, self.dtype, self.block) for kernel in kernels]

    def step(self, case: Case, device: str) -> Run:
        """Return forward + backward of a case, ready to run."""
        if self.feature_map == 'any':
            function, call = partial(mix_and_gate, backend='triton'), mix_and_gate_call(case, device, self.dtype)
        else:
            function, call = partial(polarity_attention, backend='triton'), attention_call(case, device, self.dtype)
        return forward_and_step(function, call)[1]

    def candidates(self, dry_run: bool) -> list[Launch]:
        """Return the launches to compile."""
        return (tiles if self.feature_map == 'any' else attention_launches)(self.block, dry_run)


def targets(dry_run: bool) -> list[Target]:
    """Return what is tuned, the most important first."""
    if dry_run:
        power, exp = (Case('tiny', feature_map, 1, 3, 6, 1, 16) for feature_map in ('power', 'exp'))
        return [Target('power', torch.float16, (power,)), Target('any', torch.float16, (exp,))]
    cases = {case.name: case for case in ATTENTION['cuda']}
    found = []
    for dtype in (torch.float16, torch.bfloat16):
        for feature_map, model in (('power', 'Pola-Swin-T'), ('power', 'Pola-PVT-T'), ('rotary', 'PolaFormer++ b2')):
            named = [cases[f'{model} stage 1, {size}'] for size in ('224x224, batch 64', '800x1333, batch 2')]
            found.append(Target(feature_map, dtype, tuple(named)))
        found.append(Target('any', dtype, found[-2].cases))
    return found


def tuning(session: Session, compiler: Compiler) -> Iterator[Item]:
    """Yield two items per target: the launches of each kernel, then `waves`. All compilations start at once."""
    every = targets(session.dry_run)
    known = session.results('tuning')
    compilations = {
        target: [compiler.submit(_gate(target, session), dict.fromkeys(target.keys, launch))
                 for launch in target.candidates(session.dry_run)]
        for target in every if target.name not in known
    }  # fmt: skip
    for target in every:
        futures = compilations.get(target, [])
        yield Item(target.name, partial(tune, session, target, futures), futures[-1] if futures else None)
        if target.feature_map != 'any':
            yield Item(f'waves {target.name}', partial(tune_waves, session, target))


def _gate(target: Target, session: Session) -> Any:
    return gate(target.feature_map, target.dtype, target.cases[0].dim, session.dry_run)


def shipped(target: Target, key: Key, device: torch.device) -> Launch:
    """Return the launch of launch.py."""
    with use_table(LaunchTable()):
        if target.feature_map == 'any':
            return asdict(find_tile(key.kernel, target.dtype, key.block, device))
        return asdict(find_launch(key.kernel, key.feature_map, target.dtype, key.block, device))


def tune(session: Session, target: Target, compilations: Sequence[Future[list[Binary]]]) -> dict[str, Any]:
    """Choose the launch of each kernel of a target; returns the choice by key, with what was measured."""
    wait(compilations, timeout=session.budget.left_for('tuning'))
    launches = target.candidates(session.dry_run)
    compiled = [
        (launch, future.result())
        for launch, future in zip(launches, compilations, strict=True)
        if future.done() and not future.exception()
    ]
    hardware, found = Hardware.of(session.device), {}
    for key in target.keys:
        today = shipped(target, key, session.device)
        ranked = []
        for launch, every in compiled:
            binaries = [x for x in every if x.kernel == key.kernel]
            cost = max((estimate(x, launch, target.block, hardware) for x in binaries), default=math.inf)
            if cost < math.inf:
                waves = {'waves': min(map(hardware.resident_programs, binaries))} if 'waves' in today else {}
                ranked.append((cost, {**launch, **waves}))
        ranked.sort(key=lambda pair: pair[0])
        best = [launch for _, launch in ranked if launch != today][: 1 if session.dry_run else TIMED]
        found[str(key)] = _measure(session, target, key, today, best)
    return found


def _measure(session: Session, target: Target, key: Key, today: Launch, others: list[Launch]) -> dict[str, Any]:
    """Time a kernel with today's and other launches that compute the right result."""
    step = target.step(target.cases[0], session.device.type)
    variants, launch_of, rejected = {}, {TODAY: today}, {}
    for launch in (today, *others):
        name = TODAY if launch is today else ' '.join(f'{field}={value}' for field, value in launch.items())
        with use_table(LaunchTable({key: launch})):
            failure = check(_gate(target, session), session.device)['failure']
            if failure:
                rejected[name] = failure
                continue
            with recorded() as launched:
                step()
        runs = [x.run for x in launched if x.kernel == key.kernel]
        variants[name], launch_of[name] = partial(_run_all, runs), launch
    if not variants:
        return {'launch': today, 'rejected': rejected}
    timings = interleaved_device_seconds(variants, session.device.type, **session.rounds(30))
    return {**choose(timings, launch_of), 'rejected': rejected}


def _run_all(runs: list[Run]) -> None:
    for run in runs:
        run()


def choose(timings: dict[str, Timing], launch_of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the launch of the shortest time; today's, unless another is faster by more than noise.

    Returns:
        `launch`, and the evidence: the timing of the chosen, of the second best and of today's launch.
    """
    order = sorted(timings, key=lambda name: timings[name].seconds)
    chosen = order[0]
    if TODAY in timings:
        best, today = timings[chosen], timings[TODAY]
        if today.seconds - best.seconds <= max(WORTHWHILE * today.seconds, best.spread, today.spread):
            chosen = TODAY
    second = next((name for name in order if name != chosen), None)
    return {
        'launch': launch_of[chosen],
        'measured': {
            what: {'launch': launch_of[name], **timings[name]._asdict()}
            for what, name in (('chosen', chosen), ('second best', second), (TODAY, TODAY))
            if name is not None and name in timings
        },
    }


def tune_waves(session: Session, target: Target) -> dict[str, Any]:
    """Choose the multiple of all kernels' programs per multiprocessor that makes whole steps fastest."""
    launches, device = chosen_launches(session, target), session.device.type
    choices = {TODAY: 1.0, **{f'{factor:g} times': factor for factor in (WAVES[:1] if session.dry_run else WAVES)}}
    ratios: dict[str, list[float]] = {name: [] for name in choices}
    spreads: dict[str, list[float]] = {name: [] for name in choices}
    for case in target.cases:
        step, variants = target.step(case, device), {}
        for name, factor in choices.items():
            with use_table(LaunchTable({key: _with_waves(launch, factor) for key, launch in launches.items()})):
                variants[name] = _replayed(step, session)
        timings = interleaved_device_seconds(variants, device, **session.rounds(20))
        for name, timing in timings.items():
            ratios[name].append(timing.seconds / timings[TODAY].seconds)
            spreads[name].append(timing.spread / timings[TODAY].seconds)
    relative = {name: Timing(math.prod(x) ** (1 / len(x)), max(spreads[name])) for name, x in ratios.items()}
    return choose(relative, {name: {'waves': factor} for name, factor in choices.items()})


def _with_waves(launch: Launch, factor: float) -> Launch:
    return {**launch, 'waves': max(1, round(factor * launch['waves']))} if 'waves' in launch else launch


def _replayed(step: Run, session: Session) -> Run:
    """Return a step that keeps the current launches: a CUDA graph, or in the interpreter the recorded launches."""
    if session.device.type == 'cuda':
        return graphed(step, 'cuda')
    with recorded() as launched:
        step()
    return partial(_run_all, [x.run for x in launched])


def chosen_launches(session: Session, target: Target) -> dict[Key, Launch]:
    """Return the launches that the results of a target name, with its waves; empty without results."""
    results = session.results('tuning')
    found = results.get(target.name, {})
    factor = results.get(f'waves {target.name}', {}).get('launch', {}).get('waves', 1.0)
    return {key: _with_waves(found[str(key)]['launch'], factor) for key in target.keys if str(key) in found}


def tuned_table(session: Session) -> LaunchTable:
    """Return the launches that all results of the tuning name."""
    return LaunchTable({
        key: launch for target in targets(session.dry_run) for key, launch in chosen_launches(session, target).items()
    })  # fmt: skip


def write_table(session: Session, path: Path, proved: bool) -> None:
    """Write the launch table of all results, with what was measured beside each launch.

    Args:
        proved: whether all checks were run and passed.
    """
    evidence = {name: x for found in session.results('tuning').values() for name, x in found.items() if ' ' in name}
    content = {
        'format': FORMAT,
        **{name: session.environment[name] for name in ('gpu', 'capability', 'torch', 'triton', 'kernels', 'commit')},
        'proved': proved,
        'launches': {
            str(key): {**launch, 'measured': evidence[str(key)].get('measured', {})}
            for key, launch in tuned_table(session).launches.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f'{json.dumps(content, indent=1)}\n'.encode())
