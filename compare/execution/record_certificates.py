"""Make certificates: children record each contender's steps, and threads judge the records."""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from compare.agreement import certificate, effective_settings, gates, unequal_resources
from compare.agreement.measures import MOST_THREADS
from compare.base import commands, protocol
from compare.base.interface import INFER, KnobValues, RunSpec
from compare.base.records import Perturbation, Record
from compare.execution import jobs
from compare.execution.certificate_cases import Case, Evidence
from compare.execution.jobs import Call, Job, Queue
from compare.execution.judge_certificates import Judge
from compare.execution.launcher import BESIDE_OTHERS, Launcher, Progress
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import cpu, memory, resources
from compare.settings import tunings

_ARRAYS = 2 + 2 * certificate.STEPS  # of every parameter: before, gradient and update of each step, after
# Children of a contender at a time. A GPU's memory holds five, whatever `_estimate_memory` says.
MOST_CHILDREN: dict[str, int | None] = {"cpu": None, "cuda": 5}
_NUMBERS = itertools.count()
# Bytes of a GPU, as 17 children held them on an H200: the bytes of a process beside its model, the number of copies of
# its parameters, and the most that a record of a small batch takes for activations.
_CONTEXT_BYTES, _COPIES, _MOST_BYTES = 2**30, 6, 6 * 2**30


def certify(
    launcher: Launcher, state: RunState, cases: Sequence[Case], progress: Progress, beside: Sequence[Queue] = ()
) -> None:
    """Certify every contender that has not failed against the baseline, over all cases, and run the queues `beside`.

    If no contender is left to compare, only run the queues `beside`.
    """
    if state.baseline.status == "ok" and any(other.status == "ok" for other in state.uncertified):
        doing = "certify and train" if beside else "certify"
        record_and_judge(launcher, state, Evidence.begin(launcher, cases), partial(progress, doing), beside=beside)
    elif beside:
        jobs.run_jobs(launcher, beside, partial(progress, "train"))


def record_and_judge(
    launcher: Launcher,
    state: RunState,
    evidence: Evidence,
    progress: Callable[[int, int], None],
    more: Mapping[str, Sequence[Job]] | None = None,
    later: Callable[[], Mapping[str, Sequence[Job]]] = dict,
    beside: Sequence[Queue] = (),
) -> None:
    """Record all evidence and judge it.

    The same children also run `more` jobs by contender, and those that `later` returns again and again. Queues `beside`
    have children of their own. Threads judge a case as soon as it is recorded, while the children go on.
    """
    # Several cases are judged at the same time if there are cores for the threads of each.
    with ThreadPoolExecutor(max(1, cpu.count_usable_cores() // MOST_THREADS)) as threads:
        judge = Judge(launcher, state, evidence, threads)
        queues = _make_queues(launcher, state, evidence, judge.may_record)
        by_name = {queue.run.contender.name: queue for queue in queues}
        is_parted = jobs.has_spare_cores(launcher, state)
        for queue in queues:
            queue.jobs[:0] = (more or {}).get(queue.run.contender.name, ())  # the longest jobs come first

        def read_size() -> None:
            evidence.least_bytes = _ARRAYS * 8 * state.baseline.parameter_count

        def is_judging() -> bool:
            for case in judge.look():
                noise = _make_noise_jobs(launcher, state.baseline, evidence, case, is_parted)
                by_name[state.baseline.contender.name].jobs += noise
            for name, added in later().items():
                by_name[name].jobs[:0] = added
            return judge.is_working()

        def look(done: int, total: int) -> None:
            read_size()  # the baseline's first steps may run beside
            if more is None and (state.baseline.status != "ok" or all(run.status != "ok" for run in state.uncertified)):
                for queue in queues:  # nobody is left to be compared
                    queue.jobs.clear()
            progress(done, total)

        read_size()
        jobs.run_jobs(launcher, [*queues, *beside], look, is_judging)
        judge.conclude()


def certify_settings(state: RunState) -> None:
    """Add to every certificate whether both sides run with equal settings that decide the mathematics."""
    for run in state.alive:
        current = state.certificates.get(run.contender.name)
        if current is not None and state.baseline.status == "ok":
            sides = state.baseline.settings, run.settings
            gate, mismatch = effective_settings.judge(*sides), effective_settings.describe_differences(*sides)
            extended = current.extended([gate], mismatch=mismatch, notes=effective_settings.list_remarks(*sides))
            state.certificates[run.contender.name] = extended


def certify_pruning(state: RunState) -> None:
    """Add to every new certificate whether both sides' pruned models compute what the masked full models compute."""
    for run in state.uncertified:
        current, checks = state.certificates.get(run.contender.name), (state.baseline.pruning, run.pruning)
        if current is not None and all(checks):
            worst = max(filter(None, checks), key=lambda check: math.inf if check.error is None else check.error)
            gate = gates.PRUNING.judge(worst.error, worst.array)
            mismatch = (
                None if gate.passed else f"the pruned model is not the full one with zeros: {worst.array} differs"
            )
            state.certificates[run.contender.name] = current.extended([gate], mismatch=mismatch)


def certify_resources(state: RunState) -> None:
    """Add to every certificate whether both sides have equal resources, without which times do not compare."""
    causes = {
        key: [name for name in os.environ if any(fnmatchcase(name, pattern) for pattern in patterns)]
        for key, patterns in resources.CAUSES.items()
    }
    for run in state.alive:
        current = state.certificates.get(run.contender.name)
        if current is not None and state.baseline.status == "ok":
            sides, accepted = (state.baseline.settings, run.settings), state.plan.unequal
            gate = unequal_resources.judge(*sides, accepted)
            mismatch = unequal_resources.describe_differences(*sides, accepted, causes)
            state.certificates[run.contender.name] = current.extended([gate], mismatch=mismatch)


def _make_queues(
    launcher: Launcher, state: RunState, evidence: Evidence, may_record: Callable[[str], bool]
) -> list[Queue]:
    """Return the recordings of every contender that has not failed."""
    is_parted, most = jobs.has_spare_cores(launcher, state), MOST_CHILDREN[launcher.plan.device]
    return [
        Queue(run, list(_make_jobs(launcher, run, run is state.baseline, evidence, is_parted, may_record)), most)
        for run in state.certified
        if run.status == "ok"
    ]


def _make_jobs(
    launcher: Launcher,
    run: ContenderRun,
    is_noisy: bool,
    evidence: Evidence,
    is_parted: bool,
    may_record: Callable[[str], bool],
) -> Iterator[Job]:
    """Yield the recordings of a contender.

    If it `is_noisy`, they include the perturbed runs of each case: one job each if `is_parted`, else one for all.
    """
    name = run.contender.name
    for case, dataset in evidence.cases.items():
        noise = _make_noise_jobs(launcher, run, evidence, case, is_parted) if is_noisy else []
        records = [
            Job(
                "certificate",
                [_record_call(launcher, run, precision, case, dataset, partial(evidence.keep, case, name, precision))],
                may_begin=partial(may_record, name),
                disk_space=partial(evidence.record_bytes, precision),
                memory=_estimate_memory(launcher, run, precision),
            )
            # The timed precision comes first: a child that has trained has compiled its program.
            for precision in sorted(evidence.precisions, key=lambda precision: precision != evidence.precision)
        ]
        # The longest jobs come first: the noise as a whole, but no part of it takes as long as compiling.
        compilations = _make_compilations(launcher, run, evidence, case, dataset)
        yield from (*records, *compilations, *noise) if is_parted else (*noise, *records)
    if launcher.plan.workload.model.pruned:
        case, dataset = next(iter(evidence.cases.items()))
        spec = _make_spec(launcher, run, "float64", case, dataset)
        check = commands.CheckPruning(
            replace(spec, knobs=tunings.reduce_compilation(run.contender.backend, spec.knobs))
        )
        needed = _estimate_memory(launcher, run, "float64")
        yield Job("certificate", [Call(check, partial(setattr, run, "pruning"))], memory=needed)
    if launcher.plan.deterministic:
        case, dataset = next(iter(evidence.cases.items()))
        keep = partial(evidence.repeated.__setitem__, name)
        yield Job(
            "certificate",
            [_record_call(launcher, run, evidence.precision, case, dataset, keep)],
            disk_space=partial(evidence.record_bytes, evidence.precision),
            memory=_estimate_memory(launcher, run, evidence.precision),
        )


def _make_noise_jobs(
    launcher: Launcher, run: ContenderRun, evidence: Evidence, case: Case, is_parted: bool
) -> list[Job]:
    """Return the jobs of the perturbed runs that are missing, one job for each part if `is_parted`."""
    missing = evidence.list_missing_perturbations(case)
    return [
        Job(
            "certificate",
            [_noise_call(launcher, run, evidence, case, evidence.cases[case], part)],
            disk_space=evidence.unmoved_bytes,
            memory=_estimate_memory(launcher, run, "float64"),
        )
        for part in ([[each] for each in missing] if is_parted else [missing])
    ]


def _make_compilations(
    launcher: Launcher, run: ContenderRun, evidence: Evidence, case: Case, dataset: Path
) -> list[Job]:
    """Return the job that compiles beside a record what this compiles last, where compilers do not share cores.

    Only the record at the timed precision compiles two programs with the compiler's full effort.
    """
    plan = launcher.plan
    spec = _make_spec(launcher, run, evidence.precision, case, dataset)
    if not BESIDE_OTHERS[plan.device] or not spec.knobs["compile"] or spec.devices > 1 or plan.task == INFER:
        return []
    command = commands.CompileTimedPath(spec, certificate.STEPS, _takes_batches_evenly(launcher, spec.knobs))
    needed = _estimate_memory(launcher, run, evidence.precision)
    return [Job("certificate", [Call(command)], memory=needed)]


def _estimate_memory(launcher: Launcher, run: ContenderRun, precision: str) -> int:
    """Return about how many bytes of a GPU a contender's child takes to record at a precision.

    In float64 vgg16 takes 7 GB and other large models take 5 GB, mostly activations. Those are no more than the session
    at the timed batch held. Before first steps end, both figures are unknown, and a tenth of the GPU stands for them. A
    job that does not fit is repeated beside fewer.
    """
    held = run.held_bytes or (memory.read_device_bytes(launcher.plan.device) or 0) // 10
    parameters = _COPIES * (8 if precision == "float64" else 4) * run.parameter_count
    return max(_CONTEXT_BYTES + parameters, min(held, _MOST_BYTES))


def _noise_call(
    launcher: Launcher,
    run: ContenderRun,
    evidence: Evidence,
    case: Case,
    dataset: Path,
    perturbations: Sequence[Perturbation],
) -> Call:
    spec = _make_spec(launcher, run, "float64", case, dataset)
    # Noise belongs to the function and not to the program, so the program need not be compiled for it. Without
    # compilation, one device can compute what several devices do, because each takes its part of every step.
    switches = tunings.reduce_compilation(run.contender.backend, spec.knobs)
    plan = launcher.plan
    spec = replace(spec, knobs=switches)
    if spec.devices > 1 and not switches["compile"] and plan.batch_norm == "sync" and plan.cluster.count == 1:
        spec = replace(spec, knobs=tunings.drop_parallel(switches), devices=1)

    def keep(floors: Sequence[Mapping[str, float | None]]) -> None:
        evidence.floors[case].update(zip(perturbations, map(protocol.restore_infinite, floors), strict=True))

    return Call(commands.MeasureNoise(spec, certificate.STEPS, perturbations, list(plan.batch_sizes or ())), keep)


def _record_call(
    launcher: Launcher, run: ContenderRun, precision: str, case: Case, dataset: Path, keep: Callable[[Record], None]
) -> Call:
    folder = launcher.scratch / f"record-{next(_NUMBERS)}"
    spec = _make_spec(launcher, run, precision, case, dataset)
    if precision != launcher.plan.precision:  # this program is not timed, so it need not have the fastest kernels
        # Its internals show the model. The compiler's part shows in the changes on the timed path.
        spec = replace(spec, knobs=tunings.drop_search(spec.knobs), inspects_uncompiled=spec.devices == 1)
    evenly, batch_sizes = _takes_batches_evenly(launcher, spec.knobs), list(launcher.plan.batch_sizes or ())
    command = commands.Record(spec, certificate.STEPS, str(folder), evenly, batch_sizes)
    return Call(command, lambda names: keep(Record(folder, names)))


def _takes_batches_evenly(launcher: Launcher, knobs: KnobValues) -> bool:
    """Tell whether a timed dispatch takes all batches of an epoch equally often."""
    epoch = len(launcher.plan.dataset.train.labels) // launcher.plan.batch_size
    return knobs.get("steps-per-dispatch", 1) % epoch == 0


def _make_spec(launcher: Launcher, run: ContenderRun, precision: str, case: Case, dataset: Path) -> RunSpec:
    changes = {"precision": precision, "batch_size": case.batch_size, "image_size": case.image_size}
    return launcher.spec(run, **changes, data=str(dataset))
