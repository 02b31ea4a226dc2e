"""The parent's side: run a plan's phases in child processes, one contender's failure never taking another's results.

Phases: first steps and training (cold caches; gives compile time, effective settings, accuracy), certificate, what is
used beside time, timed rounds. On a GPU, training comes beside the certificate, and so may memory.
"""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from compare.agreement import effective_settings
from compare.base.interruptions import ENDING, HeldSignals
from compare.base.workloads import PAIR
from compare.data import dataset_file
from compare.execution import (
    certificate_cases,
    jobs,
    prepare_pair,
    record_certificates,
    round_validity,
    smaller_batch,
    telemetry,
    trajectories,
    updates,
    usage,
)
from compare.execution.certificate_cases import Evidence
from compare.execution.jobs import Command, Job, Queue, open_command
from compare.execution.launcher import BESIDE_OTHERS, Launcher, Progress
from compare.execution.record_certificates import certify
from compare.execution.rounds import BLOCK_SECONDS, time_rounds
from compare.execution.run_state import ContenderRun, RunState
from compare.settings.plan import Plan
from compare.user_models.match_report import Pairing


def run_comparison(plan: Plan, progress: Progress, held: HeldSignals) -> RunState:
    """Carry out a plan; `progress(phase, done, total)` is called between timed blocks, never during one.

    Ctrl-C and signals are `held` back from the last timed round on, but not in the search for a smaller batch.
    """
    state = RunState([ContenderRun(contender) for contender in plan.contenders])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        dataset_file.save(plan.dataset, launcher.dataset)
        _prepare(launcher, state, progress)
        training = _train(launcher, state, progress)
        if plan.agreement:
            certify(launcher, state, (certificate_cases.native_case(launcher.plan),), progress, training)
            record_certificates.certify_settings(state)
            updates.judge(state)
        elif training:
            jobs.run_jobs(launcher, training, partial(progress, "train"))
        usage.measure(launcher, state, progress)
        _time(launcher, state, progress, held)
        _advise(launcher.plan, state, progress, held)
    return state


def run_agreement(plan: Plan, seeds: int, progress: Progress, held: HeldSignals) -> RunState:
    """Certify a plan's contenders over all cases and by whole training runs, timing nothing; `held` as in `run_comparison`."""
    state = RunState([ContenderRun(contender) for contender in plan.contenders])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        dataset_file.save(plan.dataset, launcher.dataset)
        _prepare(launcher, state, progress)
        found = Evidence.of(launcher, certificate_cases.adversarial_cases(launcher.plan))
        runs = trajectories.Runs.of(launcher, state, seeds)
        training = trajectories.jobs(launcher, state, runs)
        record_certificates.record_and_judge(launcher, state, found, partial(progress, "certify and train"), training)
        if twins := trajectories.twins(launcher, state, runs):
            jobs.run_jobs(launcher, twins, partial(progress, "train one-ulp twins"))
        trajectories.judge(state, runs)
        held.begin()
        record_certificates.certify_settings(state)
        _advise(launcher.plan, state, progress, held)
    return state


def match(plan: Plan) -> Pairing:
    """Return what is found of a user's own pair, nothing of it certified."""
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        dataset_file.save(plan.dataset, launcher.dataset)
        return prepare_pair.prepare(launcher)


def describe_model(plan: Plan) -> dict[str, Any]:
    """Return what the baseline says of its model (`compare.worker.server.Worker.open`), an empty object where it fails."""
    run = ContenderRun(plan.contenders[0])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        dataset_file.save(plan.dataset, launcher.dataset)
        with launcher.child(run, purpose="model") as child:
            run.opened = child.call("open", plan.deadlines["open"], spec=launcher.spec(run))
    return run.opened


def _prepare(launcher: Launcher, state: RunState, progress: Progress) -> None:
    if launcher.plan.workload.model.family == PAIR:
        progress("match", 0, 1)
        state.pairing = prepare_pair.prepare(launcher)


def _advise(plan: Plan, state: RunState, progress: Progress, held: HeldSignals) -> None:
    """Add to the reason of every contender that ran out of memory which batch would have fitted.

    All else is done by then, so Ctrl-C, or a signal that ends the program, is `held` for later; where one is already,
    nothing is searched for.
    """
    short = [run for run in state.runs if run.status == "oom"]
    if not short:
        return
    try:
        with held.let_through():
            for index, run in enumerate(short):
                progress(f"smaller batches for {run.contender.name}", index, len(short))
                run.reason = "; ".join(filter(None, (run.reason, smaller_batch.advice(plan, run.contender))))
    except ENDING as interruption:
        held.keep(interruption)


def _time(launcher: Launcher, state: RunState, progress: Progress, held: HeldSignals) -> None:
    plan = launcher.plan
    with ExitStack() as stack:
        if plan.device == "cuda":
            gpus = max(plan.rotation, *map(launcher.devices_here, state.runs))
            state.telemetry = stack.enter_context(telemetry.sample(launcher.family, launcher.now, gpus))
        else:
            state.telemetry.reason = "the run trains on the CPU"
        time_rounds(launcher, state, progress, held)
    state.voided = round_validity.voids(state.rounds, state.telemetry, plan.device)
    progress("timed rounds", len(state.rounds), plan.rounds)


def _train(launcher: Launcher, state: RunState, progress: Progress) -> list[Queue]:
    """Have contenders take their first steps and train; return what is better done beside others.

    One after the other, each into an empty cache, unless nobody asks what that takes.
    """
    plan, every = launcher.plan, state.runs
    steps, beside = updates.steps(launcher, every), BESIDE_OTHERS[plan.device]
    if beside and plan.cluster.count == 1 and not plan.cold_compile:
        queues = [_compiling(launcher, run) for run in every]
        # What they tell of their settings is to be what is timed, the number of threads too.
        jobs.run_jobs(launcher, queues, partial(progress, "compile"), divides_cores=False)
    else:
        progress("start contenders", 0, len(every))
        with launcher.children(every, purpose="training") as children:
            for index, (run, started) in enumerate(zip(every, children, strict=True)):
                progress(f"train {run.contender.name}", index, len(every))
                commands = _first_steps(launcher, run)
                commands += [] if beside else _training(launcher, run, steps)
                with started as child:
                    jobs.run_commands(child, commands, plan.deadlines)
    if not beside:
        return []
    return [_later(launcher, run, steps) for run in state.alive]


def _compiling(launcher: Launcher, run: ContenderRun) -> Queue:
    """Return a contender's first steps, alone where others would mislead a search for kernels that decides for all."""
    alone = launcher.plan.keeps_search(run.contender)
    return Queue(run, [Job("training", _first_steps(launcher, run), alone=alone)], most=1, purpose="training")


def _first_steps(launcher: Launcher, run: ContenderRun) -> list[Command]:
    """Return what shows how a contender starts, and with which settings."""
    spec = launcher.spec(run)
    warming = {"block_seconds": BLOCK_SECONDS[launcher.plan.device], "steps": None}

    def keep(found: dict[str, Any]) -> None:
        run.settings = found
        run.unproven = effective_settings.find_ineffective(spec["knobs"], found)

    return [
        open_command(spec, partial(setattr, run, "opened")),
        Command("warm_up", warming, "warm_up", partial(setattr, run, "start")),
        Command("settings", {}, "open", keep),
        Command("held", {}, "open", partial(setattr, run, "held")),
    ]


def _training(launcher: Launcher, run: ContenderRun, steps: int) -> list[Command]:
    """Return a contender's training run, and the steps that its certificate is told of, in an open session."""
    trained = Command("train", {}, "train", partial(setattr, run, "training"))
    return [trained, *(updates.commands(launcher, run, steps) if launcher.plan.agreement else ())]


def _later(launcher: Launcher, run: ContenderRun, steps: int) -> Queue:
    """Return what a contender does beside others once it has taken its first steps, all in one process.

    It begins with the memory that it takes, alone where others would mislead its search for kernels: the training finds
    what that has found. On further machines JAX would compile for it, beside others too.
    """
    training = [open_command(launcher.spec(run)), *_training(launcher, run, steps)]
    found = [Job("training", training, memory=run.held)]
    if launcher.plan.cluster.count == 1:
        alone = not launcher.may_load_beside_others(run)
        found.insert(0, Job("usage", usage.memory(launcher, run), alone=alone, memory=run.held))
    return Queue(run, found, most=1, purpose="training")
