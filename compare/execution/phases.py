"""Run the phases of a plan in child processes. A failure of one contender leaves the others' results alone.

The phases are: first steps and training, certificate, memory and energy, timed rounds. The first one starts with empty
caches and gives the compile time, the effective settings and the accuracy. On a GPU, training runs beside the
certificate, and so may the measurement of memory.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from compare.base import scratch
from compare.base.commands import ModelInfo, Open
from compare.base.interface import INFER
from compare.base.interruptions import ENDING, HeldSignals
from compare.base.workloads import PAIR
from compare.data import dataset_file
from compare.execution import (
    batch_trial,
    certificate_cases,
    explanation,
    fine_tuning,
    first_steps,
    initial_values,
    jobs,
    prepare_pair,
    ready_children,
    record_certificates,
    request_usage,
    rounds,
    telemetry,
    trajectories,
    updates,
    usage,
)
from compare.execution.certificate_cases import Case, Evidence
from compare.execution.jobs import Queue
from compare.execution.kept_certificates import KeptCertificates
from compare.execution.kept_programs import KeptPrograms
from compare.execution.launcher import BESIDE_OTHERS, Launcher, Progress
from compare.execution.run_state import ContenderRun, RunState
from compare.settings.plan import Plan
from compare.store import private_folder
from compare.user_models.match_report import Pairing

_MOST_NAMES = 3


def run_comparison(plan: Plan, progress: Progress, signals: HeldSignals) -> RunState:
    """Train, certify and time the contenders of a plan.

    Between timed blocks it calls `progress(phase, done, total)`. From the last timed round on, it holds back Ctrl-C and
    signals, except in the search for a smaller batch.
    """
    with _begin(plan, progress, _start_ahead) as (launcher, state):
        progress = partial(_name_contenders, launcher, progress)
        steps = updates.count_steps(launcher, state.runs)
        kept, compiled = KeptCertificates.find(launcher, state, steps), KeptPrograms.find(launcher, state)
        if plan.cluster.count == 1 and not plan.cold_compile:
            training = _work_side_by_side(launcher, state, progress, kept, compiled, steps)
        else:
            training = _train(launcher, state, progress, kept, steps)
            compiled.add(state)
            training += updates.make_missing_queues(launcher, state, steps, training)
        compiled.note_times(state)
        if launcher.plan.agreement:
            if training or any(run.contender.name not in state.certificates for run in _list_uncertified(state)):
                record_certificates.certify(launcher, state, _list_cases(launcher), progress, training)
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
        progress = partial(_name_contenders, launcher, progress)
        evidence = Evidence.begin(launcher, certificate_cases.make_adversarial_cases(launcher.plan))
        runs = trajectories.TrainingRuns.begin(launcher, state, seeds)
        extra_jobs, draws = trajectories.make_training_jobs(launcher, state, runs), initial_values.Draws()
        for name, drawing in initial_values.make_jobs(launcher, state, draws).items():
            extra_jobs[name] = [*extra_jobs.get(name, ()), *drawing]
        later = partial(trajectories.make_twin_jobs, launcher, state, runs)
        record_certificates.record_and_judge(
            launcher, state, evidence, partial(progress, "certify and train"), extra_jobs, later
        )
        trajectories.judge(state, runs)
        initial_values.add_differences(state, draws)
        signals.hold()
        record_certificates.certify_pruning(state)
        record_certificates.certify_settings(state)
        _advise(state, progress, signals)
    return state


def match(plan: Plan) -> Pairing:
    """Match the two models of a user's own pair, without a certificate."""
    with _scratch(plan) as folder:
        _save_dataset(plan, folder)
        return prepare_pair.resolve(plan, folder)[1]


def describe_model(plan: Plan) -> ModelInfo | None:
    """Return the baseline's description of its model, or None if the baseline fails."""
    run = ContenderRun(plan.contenders[0])
    with _scratch(plan) as folder:
        _save_dataset(plan, folder)
        launcher = Launcher(plan, folder)
        with launcher.child(run, purpose="model") as child:
            run.model = child.call(Open(launcher.spec(run)))
    return run.model


def _name_contenders(launcher: Launcher, progress: Progress, phase: str, done: int, total: int) -> None:
    """Report progress with the contenders that work now, at most three of them, after the phase."""
    names = launcher.working
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    progress(f"{phase}: {', '.join([*names[:_MOST_NAMES], *more])}" if names else phase, done, total)


@contextmanager
def _scratch(plan: Plan) -> Generator[Path]:
    """Make the scratch folder of a run."""
    with scratch.open_folder() as folder:
        private_folder.find_programs(folder, plan.store)  # refused before the run, if another user can change it
        yield folder


def _save_dataset(plan: Plan, folder: Path) -> None:
    """Write the dataset that all children read. Large synthetic images are made now, which takes seconds."""
    dataset_file.save(plan.dataset, Launcher(plan, folder).dataset, digests=True)


def _start_ahead(launcher: Launcher, state: RunState) -> None:
    first_steps.start_ahead(launcher, state)
    rounds.start_ahead(launcher, state, later=True)


@contextmanager
def _begin(
    plan: Plan, progress: Progress, start_ahead: Callable[[Launcher, RunState], None] | None = None
) -> Generator[tuple[Launcher, RunState]]:
    """Resolve the plan, and yield its launcher and the state of its run. The plan does not change afterwards.

    The children that `start_ahead` starts import while the dataset is made. Where cores are spare, those of the first
    steps import while a pair is matched.
    """
    with _scratch(plan) as folder:
        pairing = trained = None
        needs_data = plan.workload.model.family == PAIR or plan.finetune_epochs is not None
        if needs_data:
            _save_dataset(plan, folder)
        launcher = Launcher(plan, folder)
        try:
            if plan.workload.model.family == PAIR:
                progress("match", 0, 1)
                if start_ahead is not None and ready_children.have_cores(4 * len(plan.contenders) * plan.devices):
                    first_steps.start_ahead(launcher, RunState.begin(plan))
                plan, pairing = prepare_pair.resolve(plan, folder)
            if plan.finetune_epochs is not None:
                plan, trained = fine_tuning.train_full_model(plan, folder, progress)
            launcher.plan = plan
            state = RunState.begin(plan, pairing)
            state.full_training = trained
            if start_ahead is not None:
                start_ahead(launcher, state)
            if not needs_data:
                _save_dataset(plan, folder)
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
    state.voided = state.find_void_rounds()
    progress("timed rounds", len(state.rounds), plan.rounds)


def _train(launcher: Launcher, state: RunState, progress: Progress, kept: KeptCertificates, steps: int) -> list[Queue]:
    """Take every contender's first steps and train it. Return the work that is better done beside the certificate.

    The contenders run one after the other, each into an empty cache, because somebody asks for the compile time.
    """
    plan, runs = launcher.plan, state.runs
    beside = BESIDE_OTHERS[plan.device]
    progress("start contenders", 0, len(runs))
    with launcher.children(runs, purpose=first_steps.PURPOSE) as children:
        for index, (run, context) in enumerate(zip(runs, children, strict=True)):
            progress(f"train {run.contender.name}", index, len(runs))
            calls = first_steps.make_calls(launcher, run)
            if not beside and plan.task != INFER:
                calls += first_steps.make_training_calls(launcher, state, run, steps)
            with context as child:
                jobs.run_calls(child, calls)
    kept.confirm(state)
    if not beside or plan.task == INFER:
        return []
    return [first_steps.make_training_queue(launcher, state, run, steps) for run in state.alive]


def _work_side_by_side(
    launcher: Launcher,
    state: RunState,
    progress: Progress,
    kept: KeptCertificates,
    compiled: KeptPrograms,
    steps: int,
) -> list[Queue]:
    """Take every contender's first steps, train it and certify it, all side by side. Return the work that is left.

    What both sides report decides in the end whether a kept certificate holds. If not, all is certified again.
    """
    queues = [
        queue
        for run in state.runs
        for queue in first_steps.make_queues(launcher, state, run, steps, partial(compiled.add, state))
    ]
    expected = set(state.kept)
    if launcher.plan.agreement:
        record_certificates.certify(launcher, state, _list_cases(launcher), progress, queues)
    else:
        jobs.run_jobs(launcher, queues, partial(progress, "train"))
    kept.confirm(state)
    are_new = expected == set(state.kept)
    state.certificates = {
        name: state.certificates[name]
        for run in state.others
        if (name := run.contender.name) in state.certificates
        and {state.baseline.status, run.status} == {"ok"}
        and (are_new or name in state.kept)
    }
    return [] if are_new else updates.make_missing_queues(launcher, state, steps, ())


def _list_uncertified(state: RunState) -> list[ContenderRun]:
    return [run for run in state.uncertified if run.status == "ok"]


def _list_cases(launcher: Launcher) -> tuple[Case, ...]:
    return (certificate_cases.make_native_case(launcher.plan),)
