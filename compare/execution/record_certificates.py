"""Making certificates: children record each contender's steps, the pure gates judge the records."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from compare.agreement import certificate, effective_settings
from compare.agreement.measures import MOST_THREADS
from compare.base import protocol
from compare.base.records import Perturbation, Record
from compare.execution import jobs
from compare.execution.certificate_cases import Case, Evidence
from compare.execution.jobs import Command, Job, Queue
from compare.execution.judge_certificates import Judging
from compare.execution.launcher import Launcher, Progress
from compare.execution.run_state import ContenderRun, RunState
from compare.machine import cpu
from compare.settings import tunings

_ARRAYS = 2 + 2 * certificate.STEPS  # of every parameter: before, gradient and update of each step, after
# Children of a contender at a time: a GPU's memory holds four, whatever they are thought to take of it (`_memory`).
MOST_CHILDREN: dict[str, int | None] = {"cpu": None, "cuda": 4}
_NUMBERS = itertools.count()
# Of a GPU, by what 17 children held of an H200: what a process has beside its model, its parameters with gradients,
# updates and their copies, and what a record takes at most of activations, whose batch is a small one.
_CONTEXT_BYTES, _COPIES, _MOST_BYTES = 2**30, 6, 6 * 2**30


def certify(
    launcher: Launcher, state: RunState, cases: Sequence[Case], progress: Progress, beside: Sequence[Queue] = ()
) -> None:
    """Certify every contender that is alive against the baseline, over all cases, with other queues `beside` it.

    Where nobody is left to be compared, the others' work is all that is done.
    """
    baseline, *others = state.runs
    if baseline.status == "ok" and any(other.status == "ok" for other in others):
        doing = "certify and train" if beside else "certify"
        record_and_judge(launcher, state, Evidence.of(launcher, cases), partial(progress, doing), beside=beside)
    elif beside:
        jobs.run_jobs(launcher, beside, partial(progress, "train"))


def record_and_judge(
    launcher: Launcher,
    state: RunState,
    evidence: Evidence,
    progress: Callable[[int, int], None],
    more: Mapping[str, Sequence[Job]] | None = None,
    beside: Sequence[Queue] = (),
) -> None:
    """Have all evidence recorded and judged, and `more` jobs done by the same children, by contender.

    Queues `beside` them have children of their own.

    A case is judged as soon as it is recorded, by threads, while the children go on.
    """
    # Cases are judged at the same time where there are cores for the threads of each.
    with ThreadPoolExecutor(max(1, cpu.count_usable_cores() // MOST_THREADS)) as threads:
        evidence.least = _ARRAYS * 8 * state.runs[0].opened.get("parameter_count", 0)
        judging = Judging(launcher, state, evidence, threads)
        queues = _queues(launcher, state, evidence, judging.may_record)
        for queue in queues:
            queue.jobs[:0] = (more or {}).get(queue.run.contender.name, ())  # the longest early

        def look(done: int, total: int) -> None:
            judging.look()
            progress(done, total)

        jobs.run_jobs(launcher, [*queues, *beside], look, judging.is_at_work)
        judging.conclude()


def _queues(launcher: Launcher, state: RunState, evidence: Evidence, may_record: Callable[[str], bool]) -> list[Queue]:
    """Return what is to be recorded of every contender that is alive."""
    baseline = state.runs[0]
    parted, most = jobs.may_be_shared(launcher, state), MOST_CHILDREN[launcher.plan.device]
    return [
        Queue(run, list(_jobs(launcher, run, run is baseline, evidence, parted, may_record)), most)
        for run in state.alive
    ]


def certify_settings(state: RunState) -> None:
    """Add to every certificate whether both sides run with the settings that decide the mathematics."""
    baseline = state.runs[0]
    for run in state.alive:
        made = state.certificates.get(run.contender.name)
        if made is not None and baseline.status == "ok":
            sides = baseline.settings, run.settings
            gate, mismatch = effective_settings.judge(*sides), effective_settings.describe_differences(*sides)
            judged = made.extended([gate], mismatch=mismatch, notes=effective_settings.remarks(*sides))
            state.certificates[run.contender.name] = judged


def _jobs(
    launcher: Launcher,
    run: ContenderRun,
    noisy: bool,
    evidence: Evidence,
    parted: bool,
    may_record: Callable[[str], bool],
) -> Iterator[Job]:
    """Yield what a contender is asked, the perturbed runs of a case in one job or `parted`."""
    name = run.contender.name
    may_begin = partial(may_record, name)
    parts = [[each] for each in evidence.perturbations] if parted else [evidence.perturbations]
    for case, dataset in evidence.cases.items():
        noise = [
            _job(
                _noise(launcher, run, evidence, case, dataset, part),
                evidence.still,
                memory=_memory(run, "float64"),
            )
            for part in parts
            if noisy
        ]
        records = [
            _job(
                _record(launcher, run, precision, case, dataset, partial(evidence.keep, case, name, precision)),
                partial(evidence.size, precision),
                may_begin,
                _memory(run, precision),
            )
            for precision in evidence.precisions
        ]
        # What takes longest comes first: all of the noise, but of its parts none takes as long as compiling.
        yield from (*records, *noise) if parted else (*noise, *records)
    if launcher.plan.deterministic:
        case, dataset = next(iter(evidence.cases.items()))
        keep = partial(evidence.again.__setitem__, name)
        again = _record(launcher, run, evidence.precision, case, dataset, keep)
        yield _job(again, partial(evidence.size, evidence.precision), memory=_memory(run, evidence.precision))


def _job(
    command: Command, room: Callable[[], int], may_begin: Callable[[], bool] = lambda: True, memory: int = 0
) -> Job:
    return Job("certificate", [command], may_begin=may_begin, room=room, memory=memory)


def _memory(run: ContenderRun, precision: str) -> int:
    """Return about how many bytes of a GPU a contender's child takes to record at a precision.

    Of vgg16 in float64 7 GB, of other large models some 5, which are mostly activations: those are no more than the
    session at the timed batch held. `samestep agree` knows neither; what does not fit is done again by fewer.
    """
    parameters = _COPIES * (8 if precision == "float64" else 4) * run.opened.get("parameter_count", 0)
    return max(_CONTEXT_BYTES + parameters, min(run.held, _MOST_BYTES))


def _noise(
    launcher: Launcher,
    run: ContenderRun,
    evidence: Evidence,
    case: Case,
    dataset: Path,
    perturbations: Sequence[Perturbation],
) -> Command:
    spec = _spec(launcher, run, "float64", case, dataset)
    # The noise is the function's and not the program's, which need not be compiled for it. Where nothing is, nor need
    # several devices compute what one does: each hands its part of every step over.
    spec["knobs"] = knobs = tunings.soonest(run.contender.backend, spec["knobs"])
    plan = launcher.plan
    if spec["devices"] > 1 and not knobs["compile"] and plan.batch_norm == "sync" and plan.cluster.count == 1:
        spec["knobs"], spec["devices"] = tunings.on_one_device(knobs), 1
    arguments = {"spec": spec, "steps": certificate.STEPS, "perturbations": perturbations}
    return Command("noise", arguments, "record", partial(_keep_floors, evidence, case, perturbations))


def _keep_floors(
    evidence: Evidence, case: Case, made: Sequence[Perturbation], floors: Sequence[Mapping[str, float | None]]
) -> None:
    evidence.floors[case].update(zip(made, map(protocol.or_infinite, floors), strict=True))


def _record(
    launcher: Launcher, run: ContenderRun, precision: str, case: Case, dataset: Path, keep: Callable[[Record], None]
) -> Command:
    folder = launcher.scratch / f"record-{next(_NUMBERS)}"
    spec = _spec(launcher, run, precision, case, dataset)
    if precision != launcher.plan.precision:  # what is timed is not this program: it need not have the fastest kernels
        spec["knobs"] = tunings.unsearched(spec["knobs"])
    evenly = _evenly(launcher, spec["knobs"])
    arguments = {"spec": spec, "steps": certificate.STEPS, "path": str(folder), "evenly": evenly}
    return Command("record", arguments, "record", lambda names: keep(Record(folder, names)))


def _evenly(launcher: Launcher, knobs: Mapping[str, Any]) -> bool:
    """Return whether a timed dispatch takes all batches of an epoch equally often."""
    epoch = len(launcher.plan.dataset.train.labels) // launcher.plan.batch_size
    return knobs.get("steps-per-dispatch", 1) % epoch == 0


def _spec(launcher: Launcher, run: ContenderRun, precision: str, case: Case, dataset: Path) -> dict[str, Any]:
    changes = {"precision": precision, "batch_size": case.batch_size, "image_size": case.image_size}
    return launcher.spec(run, **changes, data=str(dataset))
