"""Run the phases of a plan in child processes. A failure of one contender leaves the others' results alone.

The phases are: first steps and training, certificate, memory and energy, timed rounds. The first one starts with empty
caches and gives the compile time, the effective settings and the accuracy. On a GPU, training runs beside the
certificate, and so may the measurement of memory.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from compare.agreement import effective_settings
from compare.base import scratch
from compare.base.commands import ChooseBatch, HeldMemory, ModelInfo, Open, Settings, Train, WarmUp
from compare.base.interface import INFER
from compare.base.interruptions import ENDING, HeldSignals
from compare.base.workloads import PAIR
from compare.data import dataset_file
from compare.execution import (
    batch_trial,
    certificate_cases,
    explanation,
    fine_tuning,
    jobs,
    prepare_pair,
    record_certificates,
    request_usage,
    round_validity,
    rounds,
    telemetry,
    trajectories,
    updates,
    usage,
)
from compare.execution.certificate_cases import Evidence
from compare.execution.jobs import Call, Job, Queue
from compare.execution.kept_certificates import KeptCertificates
from compare.execution.kept_programs import KeptPrograms
from compare.execution.launcher import BESIDE_OTHERS, Launcher, Progress
from compare.execution.run_state import ContenderRun, RunState
from compare.execution.timed_block import BLOCK_SECONDS
from compare.settings.plan import Plan
from compare.store import private_folder
from compare.user_models.match_report import Pairing

_CHILDREN_BEFORE_ROUNDS = 2
"""Children of each contender that compile, train and measure memory before the rounds."""


def run_comparison(plan: Plan, progress: Progress, signals: HeldSignals) -> RunState:
    """Train, certify and time the contenders of a plan.

    Between timed blocks it calls `progress(phase, done, total)`. From the last timed round on, it holds back Ctrl-C and
    signals, except in the search for a smaller batch.
    """
    with _begin(plan, progress) as (launcher, state):
        rounds.start_ahead(launcher, state, 1 if plan.task == INFER else _CHILDREN_BEFORE_ROUNDS)
        steps = updates.count_steps(launcher, state.runs)
        kept, compiled = KeptCertificates.find(launcher, state, steps), KeptPrograms.find(launcher, state)
        training = _train(launcher, state, progress, kept, steps)
        compiled.note_times(state)
        compiled.add(state)
        if launcher.plan.agreement:
            training += updates.make_missing_queues(launcher, state, steps, training)
            cases = (certificate_cases.make_native_case(launcher.plan),)
            record_certificates.certify(launcher, state, cases, progress, training)
            record_certificates.certify_pruning(state)
            record_certificates.certify_settings(state)
            record_certificates.certify_resources(state)
            updates.judge(state)
            kept.add(state)
        elif training:
            jobs.run_jobs(launcher, training, partial(progress, "train"))
        compiled.add(state)
        (request_usage if plan.task == INFER else usage).measure(launcher, state, progress)
        explanation.measure(launcher, state, progress)
        _time(launcher, state, progress, signals)
        _advise(state, progress, signals)
    return state


def run_agreement(plan: Plan, seeds: int, progress: Progress, signals: HeldSignals) -> RunState:
    """Certify the contenders of a plan over all cases and by whole training runs, without timing."""
    with _begin(plan, progress) as (launcher, state):
        evidence = Evidence.begin(launcher, certificate_cases.make_adversarial_cases(launcher.plan))
        runs = trajectories.TrainingRuns.begin(launcher, state, seeds)
        training = trajectories.make_training_jobs(launcher, state, runs)
        record_certificates.record_and_judge(
            launcher, state, evidence, partial(progress, "certify and train"), training
        )
        if twins := trajectories.make_twin_queues(launcher, state, runs):
            jobs.run_jobs(launcher, twins, partial(progress, "train one-ulp twins"))
        trajectories.judge(state, runs)
        signals.hold()
        record_certificates.certify_pruning(state)
        record_certificates.certify_settings(state)
        _advise(state, progress, signals)
    return state


def match(plan: Plan) -> Pairing:
    """Match the two models of a user's own pair, without a certificate."""
    with _scratch(plan) as folder:
        return prepare_pair.resolve(plan, folder)[1]


def describe_model(plan: Plan) -> ModelInfo | None:
    """Return the baseline's description of its model, or None if the baseline fails."""
    run = ContenderRun(plan.contenders[0])
    with _scratch(plan) as folder:
        launcher = Launcher(plan, folder)
        with launcher.child(run, purpose="model") as child:
            run.model = child.call(Open(launcher.spec(run)))
    return run.model


@contextmanager
def _scratch(plan: Plan) -> Generator[Path]:
    """Make a scratch folder that holds the plan's dataset."""
    with scratch.open_folder() as folder:
        private_folder.find_programs(folder, plan.store)  # refused before the run, if another user can change it
        dataset_file.save(plan.dataset, Launcher(plan, folder).dataset)
        yield folder


@contextmanager
def _begin(plan: Plan, progress: Progress) -> Generator[tuple[Launcher, RunState]]:
    """Resolve the plan, and yield its launcher and the state of its run. The plan does not change afterwards."""
    with _scratch(plan) as folder:
        pairing = None
        if plan.workload.model.family == PAIR:
            progress("match", 0, 1)
            plan, pairing = prepare_pair.resolve(plan, folder)
        trained = None
        if plan.finetune_epochs is not None:
            plan, trained = fine_tuning.train_full_model(plan, folder, progress)
        launcher = Launcher(plan, folder)
        try:
            state = RunState.begin(plan, pairing)
            state.full_training = trained
            yield launcher, state
        finally:
            launcher.ready.close()


def _advise(state: RunState, progress: Progress, signals: HeldSignals) -> None:
    """Add to the reason of every contender that ran out of memory which batch would have fitted.

    Everything else is done by then, so a Ctrl-C or signal waits for the result. If one waits already, skip the search.
    """
    short = [run for run in state.runs if run.status == "oom"]
    if not short:
        return
    try:
        with signals.let_through():
            for index, run in enumerate(short):
                progress(f"smaller batches for {run.contender.name}", index, len(short))
                advice = batch_trial.find_smaller_batch(state.plan, run.contender)
                run.reason = "; ".join(filter(None, (run.reason, advice)))
    except ENDING as interruption:
        signals.remember(interruption)


def _time(launcher: Launcher, state: RunState, progress: Progress, signals: HeldSignals) -> None:
    plan = launcher.plan
    with ExitStack() as stack:
        if plan.device == "cuda":
            gpus = max(plan.rotation, *map(launcher.devices_here, state.runs))
            state.telemetry = stack.enter_context(telemetry.sample(launcher.processes, launcher.now, gpus))
        else:
            state.telemetry.reason = "the run trains on the CPU"
        rounds.time_rounds(launcher, state, progress, signals)
    state.voided = round_validity.find_void_rounds(state.rounds, state.telemetry, plan.device)
    progress("timed rounds", len(state.rounds), plan.rounds)


def _train(launcher: Launcher, state: RunState, progress: Progress, kept: KeptCertificates, steps: int) -> list[Queue]:
    """Take every contender's first steps and train it. Return the work that is better done beside the certificate.

    The contenders run one after the other, each into an empty cache. They run side by side if nobody asks for the
    compile time.
    """
    plan, runs = launcher.plan, state.runs
    beside = BESIDE_OTHERS[plan.device]
    if beside and plan.cluster.count == 1 and not plan.cold_compile:
        queues = [_first_steps_queue(launcher, run) for run in runs]
        launcher.ready.settle()  # a search for kernels must not run beside imports
        # Their settings must be those of the timed rounds, including the number of threads.
        jobs.run_jobs(launcher, queues, partial(progress, "compile"), divides_cores=False)
    else:
        progress("start contenders", 0, len(runs))
        with launcher.children(runs, purpose="training") as children:
            for index, (run, context) in enumerate(zip(runs, children, strict=True)):
                progress(f"train {run.contender.name}", index, len(runs))
                calls = _first_steps(launcher, run)
                calls += [] if beside or plan.task == INFER else _training(launcher, state, run, steps)
                with context as child:
                    jobs.run_calls(child, calls)
    kept.confirm(state)
    if not beside or plan.task == INFER:
        return []
    return [_training_queue(launcher, state, run, steps) for run in state.alive]


def _first_steps_queue(launcher: Launcher, run: ContenderRun) -> Queue:
    """Return a contender's first steps as a job, which runs alone if its search for kernels decides for all rounds.

    A kept program needs no search.
    """
    alone = launcher.plan.keeps_search(run.contender) and run.program_kept is None
    run.has_compiled_alone = alone
    return Queue(run, [Job("training", _first_steps(launcher, run), alone=alone)], most=1, purpose="training")


def _first_steps(launcher: Launcher, run: ContenderRun) -> list[Call]:
    """Return the calls that show how a contender starts, and with which settings."""
    spec = launcher.spec(run)
    block_seconds = BLOCK_SECONDS[launcher.plan.device]

    def keep_model(model: ModelInfo) -> None:
        run.model = model

    def keep_warm_up(times: Any) -> None:
        run.warm_up = times

    def keep_settings(settings: dict[str, Any]) -> None:
        run.settings = settings
        run.unproven = effective_settings.find_ineffective(spec.knobs, settings)

    def keep_held(size: int) -> None:
        run.held_bytes = size

    def keep_requests(size: int, times: Any) -> None:
        run.requests[size].first_losses = times.first_losses
        run.warm_up = times if run.warm_up is None else run.warm_up.plus(times)

    warm_up = [Call(WarmUp(block_seconds, None), keep_warm_up)]
    if launcher.plan.batch_sizes:
        warm_up = [
            call
            for size in launcher.plan.batch_sizes
            for call in (Call(ChooseBatch(size)), Call(WarmUp(block_seconds, None), partial(keep_requests, size)))
        ]
    return [
        Call(Open(spec), keep_model),
        *warm_up,
        Call(Settings(), keep_settings),
        Call(HeldMemory(), keep_held),
    ]


def _training(launcher: Launcher, state: RunState, run: ContenderRun, steps: int) -> list[Call]:
    """Return a contender's training run, and the steps for the gate `update`, in an open session."""

    def keep(training: Any) -> None:
        run.training = training

    is_certified = launcher.plan.agreement and any(run is other for other in state.certified)
    return [Call(Train(), keep), *(updates.make_calls(launcher, run, steps) if is_certified else ())]


def _training_queue(launcher: Launcher, state: RunState, run: ContenderRun, steps: int) -> Queue:
    """Return the work of a contender after its first steps, all in one process.

    Memory is measured first, alone if other work would mislead the search for kernels. The training then finds its
    results. On further machines JAX would compile for that, also beside other work.
    """
    training = [Call(Open(launcher.spec(run))), *_training(launcher, state, run, steps)]
    found = [Job("training", training, memory=run.held_bytes)]
    if launcher.plan.cluster.count == 1:
        alone = not launcher.may_load_beside_others(run)
        found.insert(0, Job("usage", usage.make_memory_calls(launcher, run), alone=alone, memory=run.held_bytes))
    return Queue(run, found, most=1, purpose="training")
