"""List the work of a contender before its rounds: memory, first steps, training, and steps for the gate `update`.

First steps show how a contender starts, and with which settings.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from compare.agreement import effective_settings
from compare.base.commands import ChooseBatch, HeldMemory, ModelInfo, Open, Settings, Train, WarmUp
from compare.base.interface import INFER
from compare.execution import ready_children, updates, usage
from compare.execution.jobs import Call, Job, Queue
from compare.execution.launcher import BESIDE_OTHERS, Launcher
from compare.execution.run_state import ContenderRun, RunState
from compare.execution.timed_block import BLOCK_SECONDS

PURPOSE = "training"
"""The purpose of the children, by which those that were started ahead are found."""


def start_ahead(launcher: Launcher, state: RunState) -> None:
    """Start the children of `make_queues`, so that they import while the parent still prepares the run."""
    both = _measures_memory(launcher) and ready_children.have_cores(2 * len(state.alive))
    launcher.start_ahead([(run, PURPOSE, 0) for run in state.alive for _ in range(2 if both else 1)])


def _measures_memory(launcher: Launcher) -> bool:
    return launcher.plan.measures_memory and launcher.plan.task != INFER  # requests measure it in their rounds


def make_queues(
    launcher: Launcher, state: RunState, run: ContenderRun, steps: int, keep_programs: Callable[[], None]
) -> list[Queue]:
    """Return all of a contender's work as jobs that run beside those of others and beside certificates.

    A compiler needs memory too. So memory is measured in a fresh child that finds all programs: kept ones, or those of
    the first steps. First steps run alone if their search for kernels decides for all rounds. Memory is measured alone
    if other work would mislead the search. `keep_programs` is called when the contender has compiled.
    """
    searches = launcher.plan.keeps_search(run.contender) and run.program_kept is None
    run.has_compiled_alone = searches

    def keep() -> None:
        keep_programs()
        for job in (*memory, training):
            job.memory = run.held_bytes

    first = Job("training", make_calls(launcher, run, keep), alone=searches)
    memory = _make_memory_jobs(launcher, run) if _measures_memory(launcher) else []
    calls = [Call(Open(launcher.timed_spec(run))), *make_training_calls(launcher, state, run, steps)]
    # On a CPU, threads that wait for each other would lose their cores to other work.
    training = Job("training", calls, alone=not BESIDE_OTHERS[launcher.plan.device])
    if launcher.plan.task == INFER:
        return [_make_queue(run, [first])]
    queues = [_make_queue(run, [first, training])]
    if memory:
        memory[0].may_begin = lambda: run.warm_up is not None or run.program_kept is not None
        queues.append(_make_queue(run, memory))
    return queues


def _make_memory_jobs(launcher: Launcher, run: ContenderRun) -> list[Job]:
    """Return the measurement of memory. On a GPU only its last part must be alone, the search for kernels."""
    calls, alone = usage.make_memory_calls(launcher, run), not launcher.may_load_beside_others(run)
    if not (alone and BESIDE_OTHERS[launcher.plan.device]):
        return [Job("usage", calls, alone=alone)]
    *opening, measuring = calls
    return [Job("usage", opening), Job("usage", [measuring], alone=True, opening=opening)]


def _make_queue(run: ContenderRun, jobs: list[Job]) -> Queue:
    # Settings must be those of the timed rounds, including the number of threads.
    return Queue(run, jobs, most=1, purpose=PURPOSE, divides_cores=False)


def make_calls(launcher: Launcher, run: ContenderRun, end: Callable[[], None] = lambda: None) -> list[Call]:
    """Return the calls that show how a contender starts. They wait for steady times if these tell the compile time.

    `end` is called after the last one.
    """
    spec = launcher.timed_spec(run)
    block_seconds, settles = BLOCK_SECONDS[launcher.plan.device], run.has_compiled_alone

    def keep_model(model: ModelInfo) -> None:
        run.model = model

    def keep_warm_up(times: Any) -> None:
        run.warm_up = times

    def keep_settings(settings: dict[str, Any]) -> None:
        run.settings = settings
        run.unproven = effective_settings.find_ineffective(spec.knobs, settings)

    def keep_held(size: int) -> None:
        run.held_bytes = size
        end()

    def keep_requests(size: int, times: Any) -> None:
        run.requests[size].first_losses = times.first_losses
        run.warm_up = times if run.warm_up is None else run.warm_up.plus(times)

    warm_up = [Call(WarmUp(block_seconds, None, settles), keep_warm_up)]
    if launcher.plan.batch_sizes:
        warm_up = [
            call
            for size in launcher.plan.batch_sizes
            for call in (
                Call(ChooseBatch(size)),
                Call(WarmUp(block_seconds, None, settles), partial(keep_requests, size)),
            )
        ]
    return [
        Call(Open(spec), keep_model),
        *warm_up,
        Call(Settings(), keep_settings),
        Call(HeldMemory(), keep_held),
    ]


def make_training_calls(launcher: Launcher, state: RunState, run: ContenderRun, steps: int) -> list[Call]:
    """Return a contender's training run, and the steps for the gate `update`, in an open session."""

    def keep(training: Any) -> None:
        run.training = training

    is_certified = launcher.plan.agreement and any(run is other for other in state.certified)
    return [Call(Train(), keep), *(updates.make_calls(launcher, run, steps) if is_certified else ())]


def make_training_queue(launcher: Launcher, state: RunState, run: ContenderRun, steps: int) -> Queue:
    """Return the work of a contender after its first steps, all in one process.

    Memory is measured first, alone if other work would mislead the search for kernels. The training then finds its
    results. On further machines JAX would compile for that, also beside other work.
    """
    training = [Call(Open(launcher.timed_spec(run))), *make_training_calls(launcher, state, run, steps)]
    jobs = [Job("training", training, memory=run.held_bytes)]
    if launcher.plan.cluster.count == 1:
        alone = not launcher.may_load_beside_others(run)
        jobs.insert(0, Job("usage", usage.make_memory_calls(launcher, run), alone=alone, memory=run.held_bytes))
    return Queue(run, jobs, most=1, purpose=PURPOSE)
