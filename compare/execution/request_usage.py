"""Measure what requests take besides their latency: a cold start, memory, time of the device and energy."""

from functools import partial

from compare.base.commands import (
    Block,
    ChooseBatch,
    DeviceTime,
    IdleMemory,
    MeasureDeviceTime,
    MeasureMemory,
    Open,
    WarmUp,
)
from compare.execution import energy
from compare.execution.child import Child
from compare.execution.launcher import Launcher, Progress
from compare.execution.run_state import ContenderRun, RunState
from compare.execution.timed_block import BLOCK_SECONDS
from compare.execution.usage import combine_memory, explain_no_energy, spin

_MEMORY_REQUESTS = 3
_PROFILED_REQUESTS = 20


def measure(launcher: Launcher, state: RunState, progress: Progress) -> None:
    """Measure each contender in a fresh process, while nothing else runs."""
    for index, run in enumerate(state.alive):
        progress(f"cold start of {run.contender.name}", index, len(state.alive))
        start = launcher.now()
        with launcher.cold_child(run) as child:
            _measure_run(launcher, child, run, start)


def _measure_run(launcher: Launcher, child: Child, run: ContenderRun, start: float) -> None:
    """Measure one contender, whose process began at `start` on the launcher's clock.

    The cold start comes first, with the smallest batch, and memory is that of the largest.
    """
    plan, sizes = launcher.plan, list(launcher.plan.batch_sizes or ())
    child.greet()
    child.call(IdleMemory(plan.device))
    child.call(Open(launcher.spec(run, batch_size=sizes[0])))
    child.call(Block(1))
    run.cold_start_seconds = launcher.now() - start
    child.call(ChooseBatch(sizes[-1]))
    run.memory = combine_memory(child.call(MeasureMemory(_MEMORY_REQUESTS)))
    idle_watts: float | None = None
    for size in sizes:
        known = run.requests[size]
        known.energy = explain_no_energy(launcher, run)
        if plan.device == "cpu":
            known.device_time = DeviceTime(reason="the run is on the CPU, which is host and device")
            continue
        child.call(ChooseBatch(size))
        times = child.call(WarmUp(BLOCK_SECONDS[plan.device], known.steps_per_block))
        known.device_time = child.call(MeasureDeviceTime(_PROFILED_REQUESTS))
        if known.energy is None:
            train = partial(spin, child, times.steps_per_block)
            known.energy = energy.measure(train, launcher.devices_here(run), idle_watts)
            idle_watts = known.energy.idle_watts
