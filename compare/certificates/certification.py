"""Making certificates: children record each contender's steps, the pure gates judge the records."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from compare import environment
from compare.agreement import certificate, settings, shapes
from compare.agreement.certificate import Certificate
from compare.certificates.evidence import Case, Evidence
from compare.certificates.recording import Floor, Perturbation
from compare.certificates.records import Record
from compare.interface import Arrays
from compare.outcomes import Outcome, Outcomes
from compare.pairing import allowances
from compare.pairing.allowances import RUNNING_VARIANCE
from compare.processes import jobs
from compare.processes.jobs import Command, Job, Queue
from compare.processes.launcher import Launcher, Progress
from compare.tuning import tunings

_STEPS = 3
# Children of a contender at a time: a GPU's memory holds four, a float64 record of a large workload takes 6 GB of it.
MOST_CHILDREN: dict[str, int | None] = {"cpu": None, "cuda": 4}
# Cases are judged at the same time where there are so many cores for each: a large model's arrays take much memory.
_CORES_OF_A_CASE = 5
# All records of a case take as much as two of its largest, that in float64.
_RECORDS_OF_A_CASE = 2
_NUMBERS = itertools.count()


def certify(
    launcher: Launcher, outcomes: Outcomes, cases: Sequence[Case], progress: Progress, beside: Sequence[Queue] = ()
) -> None:
    """Certify every contender that is alive against the baseline, over all cases, with other queues `beside` it."""
    doing = "certify and train" if beside else "certify"
    carry_out(launcher, outcomes, Evidence.of(launcher, cases), partial(progress, doing), beside=beside)


def carry_out(
    launcher: Launcher,
    outcomes: Outcomes,
    evidence: Evidence,
    progress: Callable[[int, int], None],
    more: Mapping[str, Sequence[Job]] | None = None,
    beside: Sequence[Queue] = (),
) -> None:
    """Have all evidence recorded and judged, and `more` jobs done by the same children, by contender.

    Queues `beside` them have children of their own.

    A case is judged as soon as it is recorded, by threads, while the children go on.
    """
    with ThreadPoolExecutor(max(1, environment.cores() // _CORES_OF_A_CASE)) as threads:
        judging = _Judging(launcher, outcomes, evidence, threads)
        queues = _queues(launcher, outcomes, evidence, judging.may_record)
        for queue in queues:
            queue.jobs[:0] = (more or {}).get(queue.outcome.contender.name, ())  # the longest early

        def look(done: int, total: int) -> None:
            judging.look()
            progress(done, total)

        jobs.carry_out(launcher, [*queues, *beside], look)
        judging.conclude()


def _queues(
    launcher: Launcher, outcomes: Outcomes, evidence: Evidence, may_record: Callable[[str], bool]
) -> list[Queue]:
    """Return what is to be recorded of every contender that is alive."""
    baseline = outcomes.contenders[0]
    parted, most = jobs.may_be_shared(launcher, outcomes), MOST_CHILDREN[launcher.plan.device]
    return [
        Queue(outcome, list(_jobs(launcher, outcome, outcome is baseline, evidence, parted, may_record)), most)
        for outcome in outcomes.alive
    ]


class _Judging:
    """Judges every contender against the baseline, case by case, in other threads.

    A large model's records together would fill a disk: a contender's of a case are deleted when that has been judged,
    the baseline's with those of the last contender, and where there is no room for all, one records after the other.
    """

    def __init__(self, launcher: Launcher, outcomes: Outcomes, evidence: Evidence, threads: Executor) -> None:
        self._launcher, self._outcomes, self._evidence, self._threads = launcher, outcomes, evidence, threads
        self._found: dict[tuple[str, Case], Future[Certificate]] = {}
        others = [outcome.contender.name for outcome in outcomes.contenders[1:]]
        self._waiting = {case: set(others) for case in evidence.cases}
        self._lock = Lock()
        self._admitted = {outcome.contender.name for outcome in outcomes.contenders[:2]}

    def look(self) -> None:
        """Begin to judge what has been recorded since the last time, and delete what never will be judged."""
        baseline, evidence = self._outcomes.contenders[0], self._evidence
        for case, outcome in itertools.product(evidence.cases, self._outcomes.contenders[1:]):
            names = tuple(side.contender.name for side in (baseline, outcome))
            if (names[1], case) in self._found:
                continue
            if evidence.is_whole(case, names):
                judged = self._threads.submit(
                    _judged, self._launcher, self._outcomes, (baseline, outcome), case, evidence
                )
                self._found[names[1], case] = judged
                judged.add_done_callback(partial(self._forget, case, names[1]))
            elif (baseline.status != "ok" and not evidence.is_whole(case, names[:1])) or (
                outcome.status != "ok" and not evidence.is_recorded(case, names[1])
            ):
                self._forget(case, names[1])

    def may_record(self, name: str) -> bool:
        """Whether a contender may record: beside the baseline the first may, others where there is room for them.

        That is known when the first record is there. Where there is none, the next begins when those before have been
        judged.
        """
        through = all(self._admitted.isdisjoint(waiting) for waiting in self._waiting.values())
        if name not in self._admitted and (through or self._has_room()):
            self._admitted.add(name)
        return name in self._admitted

    def _has_room(self) -> bool:
        """Whether the disk has room for what is yet to be recorded, and for one contender more."""
        evidence, baseline = self._evidence, self._outcomes.contenders[0].contender.name
        recording = {
            name
            for case, waiting in self._waiting.items()
            for name in self._admitted
            if (waiting if name == baseline else name in waiting) and not evidence.is_recorded(case, name)
        }
        size = _RECORDS_OF_A_CASE * evidence.largest * len(evidence.cases)
        return bool(size) and size * (len(recording) + 1) <= shutil.disk_usage(self._launcher.scratch).free

    def conclude(self) -> None:
        """Give its certificate to every contender of which, as of the baseline, all has been recorded."""
        evidence, baseline = self._evidence, self._outcomes.contenders[0].contender.name
        for outcome in self._outcomes.contenders[1:]:
            name = outcome.contender.name
            found = {str(case): self._found.get((name, case)) for case in evidence.cases}
            if any(judged is None for judged in found.values()):
                continue
            made = certificate.combine({case: judged.result() for case, judged in found.items() if judged is not None})
            both = [evidence.determinism(side) for side in (baseline, name) if side in evidence.again]
            made = made.extended([max(both, key=lambda gate: gate.value or 0.0)] if both else [])
            pairing = self._outcomes.pairing
            self._outcomes.certificates[name] = made if pairing is None else pairing.explained(made)

    def _forget(self, case: Case, name: str, _: object = None) -> None:
        """Delete a contender's records of a case, and the baseline's if no other contender waits for them.

        Of the first case, what is recorded twice stays: it is compared with itself in the end.
        """
        deterministic, evidence = self._launcher.plan.deterministic, self._evidence
        kept = evidence.precision if deterministic and case == next(iter(evidence.cases)) else None
        evidence.forget(case, name, kept)
        with self._lock:
            self._waiting[case].discard(name)
            if not self._waiting[case]:
                evidence.forget(case, self._outcomes.contenders[0].contender.name, kept)


def certify_settings(outcomes: Outcomes) -> None:
    """Add to every certificate whether both sides run with the settings that decide the mathematics."""
    baseline = outcomes.contenders[0]
    for outcome in outcomes.alive:
        made = outcomes.certificates.get(outcome.contender.name)
        if made is not None and baseline.status == "ok":
            sides = baseline.settings, outcome.settings
            gate, mismatch = settings.gate(*sides), settings.unequal(*sides)
            judged = made.extended([gate], mismatch=mismatch, notes=settings.remarks(*sides))
            outcomes.certificates[outcome.contender.name] = judged


def _judged(
    launcher: Launcher, outcomes: Outcomes, sides: tuple[Outcome, Outcome], case: Case, evidence: Evidence
) -> Certificate:
    """Return the certificate of two sides over one case."""
    plan = launcher.plan
    baseline, contender = _comparable(launcher, outcomes, sides, case, evidence)
    normalised = plan.workload.optimizer.name == "adam"
    return certificate.make(baseline, contender, plan.precision, evidence.noise(case), normalised=normalised)


def _comparable(
    launcher: Launcher, outcomes: Outcomes, sides: tuple[Outcome, Outcome], case: Case, evidence: Evidence
) -> list[dict[str, Arrays]]:
    """Return both sides' records by precision, with the differences that are accepted taken out of them."""
    records = [
        {precision: record.load() for precision, record in evidence.records[side.contender.name, case].items()}
        for side in sides
    ]
    found = outcomes.pairing
    if found is None:
        return records
    if found.unlike:
        records = [
            {name: shapes.without_single_pixels(record, found.unlike) for name, record in by_precision.items()}
            for by_precision in records
        ]
    if RUNNING_VARIANCE not in found.allowed:
        return records
    momenta, parts = allowances.momenta(found.matching.layers), launcher.plan.accumulate
    return [
        {
            precision: allowances.with_biased_variance(record, momenta[side.contender.backend], accumulate=parts)
            for precision, record in by_precision.items()
        }
        for side, by_precision in zip(sides, records, strict=True)
    ]


def _jobs(
    launcher: Launcher,
    outcome: Outcome,
    noisy: bool,
    evidence: Evidence,
    parted: bool,
    may_record: Callable[[str], bool],
) -> Iterator[Job]:
    """Yield what a contender is asked, the perturbed runs of a case in one job or `parted`."""
    name = outcome.contender.name
    may_begin = partial(may_record, name)
    parts = [[each] for each in evidence.perturbations] if parted else [evidence.perturbations]
    for case, dataset in evidence.cases.items():
        noise = [_job(_noise(launcher, outcome, evidence, case, dataset, part)) for part in parts if noisy]
        records = [
            _job(
                _record(launcher, outcome, precision, case, dataset, partial(evidence.keep, case, name, precision)),
                may_begin,
            )
            for precision in evidence.precisions
        ]
        # What takes longest comes first: all of the noise, but of its parts none takes as long as compiling.
        yield from (*records, *noise) if parted else (*noise, *records)
    if launcher.plan.deterministic:
        case, dataset = next(iter(evidence.cases.items()))
        keep = partial(evidence.again.__setitem__, name)
        yield _job(_record(launcher, outcome, evidence.precision, case, dataset, keep))


def _job(command: Command, may_begin: Callable[[], bool] = lambda: True) -> Job:
    return Job("certificate", [command], may_begin=may_begin)


def _noise(
    launcher: Launcher,
    outcome: Outcome,
    evidence: Evidence,
    case: Case,
    dataset: Path,
    perturbations: Sequence[Perturbation],
) -> Command:
    spec = _spec(launcher, outcome, "float64", case, dataset)
    # The noise is the function's and not the program's, which need not be compiled for it.
    spec["knobs"] = tunings.soonest(outcome.contender.backend, spec["knobs"])
    arguments = {"spec": spec, "steps": _STEPS, "perturbations": perturbations}
    return Command("noise", arguments, "record", partial(_keep_floors, evidence, case, perturbations))


def _keep_floors(evidence: Evidence, case: Case, made: Sequence[Perturbation], floors: Sequence[Floor]) -> None:
    evidence.floors[case].update(zip(made, floors, strict=True))


def _record(
    launcher: Launcher, outcome: Outcome, precision: str, case: Case, dataset: Path, keep: Callable[[Record], None]
) -> Command:
    folder = launcher.scratch / f"record-{next(_NUMBERS)}"
    spec = _spec(launcher, outcome, precision, case, dataset)
    if precision != launcher.plan.precision:  # what is timed is not this program: it need not have the fastest kernels
        spec["knobs"] = tunings.unsearched(spec["knobs"])
    arguments = {"spec": spec, "steps": _STEPS, "path": str(folder), "evenly": _evenly(launcher, spec["knobs"])}
    return Command("record", arguments, "record", lambda names: keep(Record(folder, names)))


def _evenly(launcher: Launcher, knobs: Mapping[str, Any]) -> bool:
    """Return whether a timed dispatch takes all batches of an epoch equally often."""
    epoch = len(launcher.plan.dataset.train.labels) // launcher.plan.batch_size
    return knobs.get("steps-per-dispatch", 1) % epoch == 0


def _spec(launcher: Launcher, outcome: Outcome, precision: str, case: Case, dataset: Path) -> dict[str, Any]:
    changes = {"precision": precision, "batch_size": case.batch_size, "image_size": case.image_size}
    return launcher.spec(outcome, **changes, data=str(dataset))
