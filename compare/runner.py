"""The parent's side: run a plan's phases in child processes, one contender's failure never taking another's results.

Phases: first steps and training (cold caches; gives compile time, effective settings, accuracy), certificate, what is
used beside time, timed rounds. On a GPU, training comes beside the certificate, and so may memory.
"""

import tempfile
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from compare import usage
from compare.agreement import settings
from compare.certificates import certification, evidence, trajectories, updates
from compare.certificates.certification import certify
from compare.certificates.evidence import Evidence
from compare.data import store
from compare.fitting import smaller
from compare.measure import telemetry, voiding
from compare.outcomes import Outcome, Outcomes
from compare.pairing import pairs
from compare.pairing.found import Pairing
from compare.plan import Plan
from compare.processes import jobs
from compare.processes.child import Child
from compare.processes.jobs import Command, Job, Queue, opening
from compare.processes.launcher import BESIDE_OTHERS, Launcher, Progress
from compare.rounds import BLOCK_SECONDS, time_rounds
from compare.workloads import PAIR


def run(plan: Plan, progress: Progress) -> Outcomes:
    """Carry out a plan; `progress(phase, done, total)` is called between timed blocks, never during one."""
    outcomes = Outcomes([Outcome(contender) for contender in plan.contenders])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        store.save(plan.dataset, launcher.dataset)
        _prepare(launcher, outcomes, progress)
        steps, training = updates.steps(launcher, outcomes.contenders), list[Queue]()
        progress("start contenders", 0, len(outcomes.contenders))
        with launcher.children(outcomes.contenders, purpose="training") as children:
            for index, (outcome, started) in enumerate(zip(outcomes.contenders, children, strict=True)):
                progress(f"train {outcome.contender.name}", index, len(outcomes.contenders))
                training += _train(launcher, outcome, started, steps)
        if plan.agreement:
            certify(launcher, outcomes, (evidence.native(launcher.plan),), progress, training)
            certification.certify_settings(outcomes)
            updates.judge(outcomes)
        elif training:
            jobs.carry_out(launcher, training, partial(progress, "train"))
        usage.measure(launcher, outcomes, progress)
        _time(launcher, outcomes, progress)
        if outcomes.interruption is None:
            _advise(launcher.plan, outcomes, progress)
    return outcomes


def agree(plan: Plan, seeds: int, progress: Progress) -> Outcomes:
    """Certify a plan's contenders over all cases and by whole training runs, timing nothing."""
    outcomes = Outcomes([Outcome(contender) for contender in plan.contenders])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        store.save(plan.dataset, launcher.dataset)
        _prepare(launcher, outcomes, progress)
        found = Evidence.of(launcher, evidence.adversarial(launcher.plan))
        runs = trajectories.Runs.of(launcher, outcomes, seeds)
        training = trajectories.jobs(launcher, outcomes, runs)
        certification.carry_out(launcher, outcomes, found, partial(progress, "certify and train"), training)
        if twins := trajectories.twins(launcher, outcomes, runs):
            jobs.carry_out(launcher, twins, partial(progress, "train one-ulp twins"))
        trajectories.judge(outcomes, runs)
        certification.certify_settings(outcomes)
        _advise(launcher.plan, outcomes, progress)
    return outcomes


def matched(plan: Plan) -> Pairing:
    """Return what is found of a user's own pair, nothing of it certified."""
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        store.save(plan.dataset, launcher.dataset)
        return pairs.prepare(launcher)


def opened(plan: Plan) -> dict[str, Any]:
    """Return what the baseline says of its model (`compare.worker.Worker.open`), an empty object where it fails."""
    outcome = Outcome(plan.contenders[0])
    with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
        launcher = Launcher(plan, Path(scratch))
        store.save(plan.dataset, launcher.dataset)
        with launcher.child(outcome, purpose="model") as child:
            outcome.opened = child.call("open", plan.deadlines["open"], spec=launcher.spec(outcome))
    return outcome.opened


def _prepare(launcher: Launcher, outcomes: Outcomes, progress: Progress) -> None:
    if launcher.plan.workload.model.family == PAIR:
        progress("match", 0, 1)
        outcomes.pairing = pairs.prepare(launcher)


def _advise(plan: Plan, outcomes: Outcomes, progress: Progress) -> None:
    """Add to the reason of every contender that ran out of memory which batch would have fitted.

    All else is done by then, so Ctrl-C, or a signal that ends the program, becomes `outcomes.interruption`.
    """
    short = [outcome for outcome in outcomes.contenders if outcome.status == "oom"]
    try:
        for index, outcome in enumerate(short):
            progress(f"smaller batches for {outcome.contender.name}", index, len(short))
            outcome.reason = "; ".join(filter(None, (outcome.reason, smaller.advice(plan, outcome.contender))))
    except (KeyboardInterrupt, SystemExit) as interruption:
        outcomes.interruption = interruption


def _time(launcher: Launcher, outcomes: Outcomes, progress: Progress) -> None:
    plan = launcher.plan
    with ExitStack() as stack:
        if plan.device == "cuda":
            gpus = max(map(launcher.devices_here, outcomes.contenders))
            outcomes.telemetry = stack.enter_context(telemetry.sampled(launcher.family, launcher.now, gpus))
        else:
            outcomes.telemetry.reason = "the run trains on the CPU"
        time_rounds(launcher, outcomes, progress)
    outcomes.voided = voiding.voids(outcomes.rounds, outcomes.telemetry, plan.device)
    progress("timed rounds", len(outcomes.rounds), plan.rounds)


def _train(launcher: Launcher, outcome: Outcome, started: AbstractContextManager[Child], steps: int) -> list[Queue]:
    """Have a contender take its first steps, compiled afresh, and train; return what is better done beside others."""
    plan, spec = launcher.plan, launcher.spec(outcome)
    beside = BESIDE_OTHERS[plan.device]
    training = [Command("train", {}, "train", partial(setattr, outcome, "training"))]
    if plan.agreement:
        training += updates.commands(launcher, outcome, steps)
    with started as child:
        outcome.opened = child.call("open", plan.deadlines["open"], spec=spec)
        seconds = BLOCK_SECONDS[plan.device]
        outcome.start = child.call("warm_up", plan.deadlines["warm_up"], block_seconds=seconds, steps=None)
        outcome.settings = child.call("settings", plan.deadlines["open"])
        outcome.unproven = settings.ineffective(spec["knobs"], outcome.settings)
        held = usage.held(child, plan.device)
        jobs.carry_out_alone(child, () if beside else training, plan.deadlines)
    if not beside or outcome.status != "ok":
        return []
    later = {"usage": usage.memory(launcher, outcome)} if launcher.may_load_beside_others(outcome) else {}
    later["training"] = [opening(spec), *training]
    found = [Job(purpose, commands, memory=held) for purpose, commands in later.items()]
    return [Queue(outcome, found, most=1, purpose="training")]
