"""Measure memory, energy and communication of each contender while no block is timed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from compare.base import communication
from compare.base.commands import IdleMemory, MeasureCommunication, MeasureMemory, MemoryUse, Open, Spin
from compare.base.communication import Communication
from compare.base.interface import Memory
from compare.execution import energy, jobs
from compare.execution.child import Child
from compare.execution.energy import Energy
from compare.execution.jobs import Call
from compare.execution.launcher import Launcher, Progress
from compare.execution.run_state import ContenderRun, RunState

_MEMORY_STEPS = 3


def make_memory_calls(launcher: Launcher, run: ContenderRun) -> list[Call]:
    """Return the calls that measure the memory of a few steps in a fresh child, without the memory of its imports."""

    def keep(use: MemoryUse) -> None:
        run.memory = combine_memory(use)

    return [
        Call(IdleMemory(launcher.plan.device)),
        Call(Open(launcher.timed_spec(run))),
        Call(MeasureMemory(_MEMORY_STEPS), keep),
    ]


def measure(launcher: Launcher, state: RunState, progress: Progress) -> None:
    """Measure the missing figures of each contender in a fresh process, while nothing else runs."""
    due = list[ContenderRun]()
    for run in state.alive:
        run.energy = explain_no_energy(launcher, run)
        run.communication = _explain_no_communication(launcher, run)
        if (launcher.plan.measures_memory and run.memory is None) or _is_communication_due(launcher, run):
            due.append(run)
    with launcher.children(due, purpose="usage") as children:
        for index, (run, context) in enumerate(zip(due, children, strict=True)):
            progress(f"usage of {run.contender.name}", index, len(due))
            with context as child:
                _measure_run(launcher, child, run)


def _measure_run(launcher: Launcher, child: Child, run: ContenderRun) -> None:
    calls = make_memory_calls(launcher, run) if run.memory is None else [Call(Open(launcher.timed_spec(run)))]
    jobs.run_calls(child, calls)
    if _is_communication_due(launcher, run):
        run.communication = child.call(MeasureCommunication(communication.STEPS))


def combine_memory(use: MemoryUse) -> Memory:
    """Return the framework's figures with the bytes of the process, or with the reason why they are unknown."""
    if use.process is not None:
        return replace(use.framework, process_bytes=use.process)
    absent = {**use.framework.absent, "process_bytes": "NVML is not there or does not list this process"}
    return replace(use.framework, absent=absent)


def explain_no_energy(launcher: Launcher, run: ContenderRun) -> Energy | None:
    """Return the reason why there is no energy figure, or None if it is due."""
    plan = launcher.plan
    if plan.device != "cuda":
        return Energy(reason="the run trains on the CPU")
    if not plan.energy:
        return Energy(reason="not asked for")
    if launcher.spec(run).devices > launcher.devices_here(run):
        return Energy(reason="counted on the first machine only, and it trains on several")
    return None


def _explain_no_communication(launcher: Launcher, run: ContenderRun) -> Communication | None:
    """Return the reason why there is no communication figure, or None."""
    plan = launcher.plan
    if plan.communication and plan.device != "cuda":
        return Communication(reason="the run trains on the CPU")
    if plan.communication and launcher.spec(run).devices == 1:
        return Communication(reason="one device has none to communicate with")
    return None


def _is_communication_due(launcher: Launcher, run: ContenderRun) -> bool:
    return launcher.plan.communication and run.communication is None


def measure_energy(launcher: Launcher, children: Mapping[str, Child], runs: Sequence[ContenderRun]) -> None:
    """Measure the energy of contenders that have none yet, in their children of a round after its last block.

    Their sessions are warm, and all processes but one rest. The idle power is that of the first measurement.
    """
    idle = dict[int, float | None]()
    for run in runs:
        run.energy = run.energy or explain_no_energy(launcher, run)
        if run.energy is None:
            count = launcher.devices_here(run)
            child = children[run.contender.name]
            run.attempt("energy", partial(_measure_energy, child, run, count, idle.get(count)))
            idle[count] = run.energy and run.energy.idle_watts


def _measure_energy(child: Child, run: ContenderRun, count: int, idle_watts: float | None) -> None:
    assert run.steps_per_block is not None  # set before the blocks
    run.energy = energy.measure(partial(spin, child, run.steps_per_block), count, idle_watts)


def spin(child: Child, steps: int, look: energy.Look) -> int:
    """Train blocks of `steps` in a child for a window of energy, call `look` meanwhile, and return the steps."""
    command = Spin(energy.WINDOW_SECONDS, steps)
    child.send(command)
    while not child.has_replied(command):
        look()
        time.sleep(energy.POLL_SECONDS)
    return child.reply(command)
