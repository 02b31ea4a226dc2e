"""What a contender uses beside time, measured while no block is timed: memory; on a GPU, energy and communication."""

from typing import Any

from compare.base import communication
from compare.execution import energy, jobs
from compare.execution.child import Child
from compare.execution.jobs import Command, open_command
from compare.execution.launcher import Launcher, Progress
from compare.execution.rounds import BLOCK_SECONDS
from compare.execution.run_state import ContenderRun, RunState
from compare.settings.plan import Plan

_MEMORY_STEPS = 3


def memory(launcher: Launcher, run: ContenderRun) -> list[Command]:
    """Return what has a fresh child take a few steps and report its memory, less what it held after its imports."""

    def keep(measured: dict[str, Any]) -> None:
        run.memory = _figures(measured)

    return [
        Command("idle_memory", {"device": launcher.plan.device}, "memory", lambda _: None),
        open_command(launcher.spec(run)),
        Command("memory", {"steps": _MEMORY_STEPS}, "memory", keep),
    ]


def measure(launcher: Launcher, state: RunState, progress: Progress) -> None:
    """Measure what is still unknown of each contender that is alive, in a fresh process, while nothing else works."""
    plan, asked = launcher.plan, list[ContenderRun]()
    for run in state.alive:
        run.energy = _no_energy(launcher, run)
        run.communication = _no_communication(launcher, run)
        if run.memory is None or run.energy is None or _is_communication_due(plan, run):
            asked.append(run)
    with launcher.children(asked, purpose="usage") as children:
        for index, (run, started) in enumerate(zip(asked, children, strict=True)):
            progress(f"usage of {run.contender.name}", index, len(asked))
            with started as child:
                _measure(launcher, child, run)


def _measure(launcher: Launcher, child: Child, run: ContenderRun) -> None:
    plan = launcher.plan
    commands = memory(launcher, run) if run.memory is None else [open_command(launcher.spec(run))]
    jobs.run_commands(child, commands, plan.deadlines)
    if run.energy is None:
        run.energy = _energy(launcher, child, run)
    if _is_communication_due(plan, run):
        run.communication = child.call("communication", plan.deadlines["memory"], steps=communication.STEPS)


def _figures(measured: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = dict(measured["framework"])
    absent = dict(figures["absent"])
    if measured["process"] is None:
        absent["process_bytes"] = "NVML is not there or does not list this process"
    else:
        figures["process_bytes"] = measured["process"]
    return figures | {"absent": absent}


def _no_energy(launcher: Launcher, run: ContenderRun) -> dict[str, Any] | None:
    """Return why there are no figures; None where they are to be measured."""
    plan = launcher.plan
    if plan.device != "cuda":
        return energy.absent("the run trains on the CPU")
    if not plan.energy:
        return energy.absent("not asked for")
    if launcher.spec(run)["devices"] > launcher.devices_here(run):
        return energy.absent("counted on the first machine only, and it trains on several")
    return None


def _no_communication(launcher: Launcher, run: ContenderRun) -> dict[str, Any] | None:
    """Return why there are no figures; None where they are to be measured, or are not asked for."""
    plan = launcher.plan
    if plan.communication and plan.device != "cuda":
        return communication.absent("the run trains on the CPU")
    if plan.communication and launcher.spec(run)["devices"] == 1:
        return communication.absent("one device has none to communicate with")
    return None


def _is_communication_due(plan: Plan, run: ContenderRun) -> bool:
    return plan.communication and run.communication is None


def _energy(launcher: Launcher, child: Child, run: ContenderRun) -> dict[str, Any]:
    plan = launcher.plan
    warm = child.call(
        "warm_up", plan.deadlines["warm_up"], block_seconds=BLOCK_SECONDS[plan.device], steps=run.steps_per_block
    )
    steps = warm["steps_per_block"]
    # The block's deadline begins when the window has ended.
    deadline = energy.WINDOW_SECONDS + plan.deadlines["block"]
    count = launcher.devices_here(run)
    return energy.measure(lambda: child.call("spin", deadline, seconds=energy.WINDOW_SECONDS, steps=steps), count)
