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
from compare.base.interruptions import ENDING, Held
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
from compare.execution.jobs import Command, Job, Queue, opening
from compare.execution.launcher import BESIDE_OTHERS, Launcher, Progress
from compare.execution.record_certificates import certify
from compare.execution.rounds import BLOCK_SECONDS, time_rounds
from compare.execution.run_state import Outcome, Outcomes
from compare.settings.plan import Plan
from compare.user_models.match_report import Pairing


def run(plan: Plan, progress: Progress, held: Held) -> Outcomes:
    """Carry out a plan; `progress(phase, done, total)` is called between timed blocks, never during one.

    Ctrl-C and signals are `held` back from the last timed round on, but not in the search for a smaller batch.
    """
    outcomes = Outcomes([Outcome(contender) for contender in plan.contenders])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        dataset_file.save(plan.dataset, launcher.dataset)
        _prepare(launcher, outcomes, progress)
        training = _train(launcher, outcomes, progress)
        if plan.agreement:
            certify(launcher, outcomes, (certificate_cases.native(launcher.plan),), progress, training)
            record_certificates.certify_settings(outcomes)
            updates.judge(outcomes)
        elif training:
            jobs.carry_out(launcher, training, partial(progress, "train"))
        usage.measure(launcher, outcomes, progress)
        _time(launcher, outcomes, progress, held)
        _advise(launcher.plan, outcomes, progress, held)
    return outcomes


def agree(plan: Plan, seeds: int, progress: Progress, held: Held) -> Outcomes:
    """Certify a plan's contenders over all cases and by whole training runs, timing nothing; `held` as in `run`."""
    outcomes = Outcomes([Outcome(contender) for contender in plan.contenders])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        dataset_file.save(plan.dataset, launcher.dataset)
        _prepare(launcher, outcomes, progress)
        found = Evidence.of(launcher, certificate_cases.adversarial(launcher.plan))
        runs = trajectories.Runs.of(launcher, outcomes, seeds)
        training = trajectories.jobs(launcher, outcomes, runs)
        record_certificates.carry_out(launcher, outcomes, found, partial(progress, "certify and train"), training)
        if twins := trajectories.twins(launcher, outcomes, runs):
            jobs.carry_out(launcher, twins, partial(progress, "train one-ulp twins"))
        trajectories.judge(outcomes, runs)
        held.begin()
        record_certificates.certify_settings(outcomes)
        _advise(launcher.plan, outcomes, progress, held)
    return outcomes


def matched(plan: Plan) -> Pairing:
    """Return what is found of a user's own pair, nothing of it certified."""
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        dataset_file.save(plan.dataset, launcher.dataset)
        return prepare_pair.prepare(launcher)


def opened(plan: Plan) -> dict[str, Any]:
    """Return what the baseline says of its model (`compare.worker.server.Worker.open`), an empty object where it fails."""
    outcome = Outcome(plan.contenders[0])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        dataset_file.save(plan.dataset, launcher.dataset)
        with launcher.child(outcome, purpose="model") as child:
            outcome.opened = child.call("open", plan.deadlines["open"], spec=launcher.spec(outcome))
    return outcome.opened


def _prepare(launcher: Launcher, outcomes: Outcomes, progress: Progress) -> None:
    if launcher.plan.workload.model.family == PAIR:
        progress("match", 0, 1)
        outcomes.pairing = prepare_pair.prepare(launcher)


def _advise(plan: Plan, outcomes: Outcomes, progress: Progress, held: Held) -> None:
    """Add to the reason of every contender that ran out of memory which batch would have fitted.

    All else is done by then, so Ctrl-C, or a signal that ends the program, is `held` for later; where one is already,
    nothing is searched for.
    """
    short = [outcome for outcome in outcomes.contenders if outcome.status == "oom"]
    if not short:
        return
    try:
        with held.let_through():
            for index, outcome in enumerate(short):
                progress(f"smaller batches for {outcome.contender.name}", index, len(short))
                outcome.reason = "; ".join(
                    filter(None, (outcome.reason, smaller_batch.advice(plan, outcome.contender)))
                )
    except ENDING as interruption:
        held.keep(interruption)


def _time(launcher: Launcher, outcomes: Outcomes, progress: Progress, held: Held) -> None:
    plan = launcher.plan
    with ExitStack() as stack:
        if plan.device == "cuda":
            gpus = max(plan.rotation, *map(launcher.devices_here, outcomes.contenders))
            outcomes.telemetry = stack.enter_context(telemetry.sampled(launcher.family, launcher.now, gpus))
        else:
            outcomes.telemetry.reason = "the run trains on the CPU"
        time_rounds(launcher, outcomes, progress, held)
    outcomes.voided = round_validity.voids(outcomes.rounds, outcomes.telemetry, plan.device)
    progress("timed rounds", len(outcomes.rounds), plan.rounds)


def _train(launcher: Launcher, outcomes: Outcomes, progress: Progress) -> list[Queue]:
    """Have contenders take their first steps and train; return what is better done beside others.

    One after the other, each into an empty cache, unless nobody asks what that takes.
    """
    plan, every = launcher.plan, outcomes.contenders
    steps, beside = updates.steps(launcher, every), BESIDE_OTHERS[plan.device]
    if beside and plan.fleet.count == 1 and not plan.cold_compile:
        queues = [_compiling(launcher, outcome) for outcome in every]
        # What they tell of their settings is to be what is timed, the number of threads too.
        jobs.carry_out(launcher, queues, partial(progress, "compile"), divides_cores=False)
    else:
        progress("start contenders", 0, len(every))
        with launcher.children(every, purpose="training") as children:
            for index, (outcome, started) in enumerate(zip(every, children, strict=True)):
                progress(f"train {outcome.contender.name}", index, len(every))
                commands = _first_steps(launcher, outcome)
                commands += [] if beside else _training(launcher, outcome, steps)
                with started as child:
                    jobs.carry_out_alone(child, commands, plan.deadlines)
    if not beside:
        return []
    return [_later(launcher, outcome, steps) for outcome in outcomes.alive]


def _compiling(launcher: Launcher, outcome: Outcome) -> Queue:
    """Return a contender's first steps, alone where others would mislead a search for kernels that decides for all."""
    alone = launcher.plan.keeps_search(outcome.contender)
    return Queue(outcome, [Job("training", _first_steps(launcher, outcome), alone=alone)], most=1, purpose="training")


def _first_steps(launcher: Launcher, outcome: Outcome) -> list[Command]:
    """Return what shows how a contender starts, and with which settings."""
    spec = launcher.spec(outcome)
    warming = {"block_seconds": BLOCK_SECONDS[launcher.plan.device], "steps": None}

    def keep(found: dict[str, Any]) -> None:
        outcome.settings = found
        outcome.unproven = effective_settings.ineffective(spec["knobs"], found)

    return [
        opening(spec, partial(setattr, outcome, "opened")),
        Command("warm_up", warming, "warm_up", partial(setattr, outcome, "start")),
        Command("settings", {}, "open", keep),
        Command("held", {}, "open", partial(setattr, outcome, "held")),
    ]


def _training(launcher: Launcher, outcome: Outcome, steps: int) -> list[Command]:
    """Return a contender's training run, and the steps that its certificate is told of, in an open session."""
    trained = Command("train", {}, "train", partial(setattr, outcome, "training"))
    return [trained, *(updates.commands(launcher, outcome, steps) if launcher.plan.agreement else ())]


def _later(launcher: Launcher, outcome: Outcome, steps: int) -> Queue:
    """Return what a contender does beside others once it has taken its first steps, all in one process.

    It begins with the memory that it takes, alone where others would mislead its search for kernels: the training finds
    what that has found. On further machines JAX would compile for it, beside others too.
    """
    training = [opening(launcher.spec(outcome)), *_training(launcher, outcome, steps)]
    found = [Job("training", training, memory=outcome.held)]
    if launcher.plan.fleet.count == 1:
        alone = not launcher.may_load_beside_others(outcome)
        found.insert(0, Job("usage", usage.memory(launcher, outcome), alone=alone, memory=outcome.held))
    return Queue(outcome, found, most=1, purpose="training")
