"""Judging what has been recorded, case by case, beside the children that record, and deleting what has been judged."""

import itertools
from concurrent.futures import Executor, Future
from functools import partial
from threading import Lock

from compare.agreement import allowances, certificate
from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.certificate import Certificate
from compare.base import tensors
from compare.base.interface import Arrays
from compare.execution.certificate_cases import Case, Evidence
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState


class Judging:
    """Judges every contender against the baseline, case by case, in other threads.

    A large model's records together would fill a disk: a contender's of a case are deleted when that has been judged,
    the baseline's with those of the last contender, and where there is no room for all, one records after the other.
    """

    def __init__(self, launcher: Launcher, state: RunState, evidence: Evidence, threads: Executor) -> None:
        self._launcher, self._state, self._evidence, self._threads = launcher, state, evidence, threads
        self._found: dict[tuple[str, Case], Future[Certificate]] = {}
        others = [run.contender.name for run in state.runs[1:]]
        self._waiting = {case: set(others) for case in evidence.cases}
        self._lock, self._open = Lock(), 0
        self._admitted = {run.contender.name for run in state.runs[:2]}

    def look(self) -> None:
        """Begin to judge what has been recorded since the last time, and delete what never will be judged."""
        baseline, evidence = self._state.runs[0], self._evidence
        for case, run in itertools.product(evidence.cases, self._state.runs[1:]):
            names = tuple(side.contender.name for side in (baseline, run))
            if (names[1], case) in self._found:
                continue
            if evidence.is_whole(case, names):
                with self._lock:
                    self._open += 1
                judged = self._threads.submit(_judged, self._launcher, self._state, (baseline, run), case, evidence)
                self._found[names[1], case] = judged
                judged.add_done_callback(partial(self._end, case, names[1]))
            elif (baseline.status != "ok" and not evidence.is_whole(case, names[:1])) or (
                run.status != "ok" and not evidence.is_recorded(case, names[1])
            ):
                self._forget(case, names[1])

    def is_at_work(self) -> bool:
        """Whether something is being judged, which is then deleted."""
        return self._open > 0

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
        """Whether the disk has room for what is yet to be recorded, for one contender more, and one run of noise.

        Nothing is judged before all noise is known.
        """
        evidence, baseline = self._evidence, self._state.runs[0].contender.name
        needed = sum(
            evidence.to_come(case, name)
            for case, waiting in self._waiting.items()
            for name in self._admitted
            if (waiting if name == baseline else name in waiting)
        )
        needed += sum(map(evidence.to_come, evidence.cases))
        needed += 0 if all(map(evidence.is_noise_known, evidence.cases)) else evidence.still()
        return bool(evidence.largest) and needed <= tensors.room(self._launcher.scratch)

    def conclude(self) -> None:
        """Give its certificate to every contender of which, as of the baseline, all has been recorded."""
        evidence, baseline = self._evidence, self._state.runs[0].contender.name
        for run in self._state.runs[1:]:
            name = run.contender.name
            found = {str(case): self._found.get((name, case)) for case in evidence.cases}
            if any(judged is None for judged in found.values()):
                continue
            made = certificate.combine({case: judged.result() for case, judged in found.items() if judged is not None})
            both = [evidence.determinism(side) for side in (baseline, name) if side in evidence.again]
            made = made.extended([max(both, key=lambda gate: gate.value or 0.0)] if both else [])
            pairing = self._state.pairing
            self._state.certificates[name] = made if pairing is None else pairing.explain(made)

    def _end(self, case: Case, name: str, _: object) -> None:
        self._forget(case, name)
        with self._lock:
            self._open -= 1

    def _forget(self, case: Case, name: str) -> None:
        """Delete a contender's records of a case, and the baseline's if no other contender waits for them.

        Of the first case, what is recorded twice stays: it is compared with itself in the end.
        """
        deterministic, evidence = self._launcher.plan.deterministic, self._evidence
        kept = evidence.precision if deterministic and case == next(iter(evidence.cases)) else None
        evidence.forget(case, name, kept)
        with self._lock:
            self._waiting[case].discard(name)
            if not self._waiting[case]:
                evidence.forget(case, self._state.runs[0].contender.name, kept)


def _judged(
    launcher: Launcher, state: RunState, sides: tuple[ContenderRun, ContenderRun], case: Case, evidence: Evidence
) -> Certificate:
    """Return the certificate of two sides over one case."""
    plan = launcher.plan
    baseline, contender = _comparable(launcher, state, sides, case, evidence)
    normalised = plan.workload.optimizer.name == "adam"
    return certificate.judge(baseline, contender, plan.precision, evidence.noise(case), normalised=normalised)


def _comparable(
    launcher: Launcher, state: RunState, sides: tuple[ContenderRun, ContenderRun], case: Case, evidence: Evidence
) -> list[dict[str, Arrays]]:
    """Return both sides' records by precision, with the differences that are accepted taken out of them."""
    records = [
        {precision: record.load() for precision, record in evidence.records[side.contender.name, case].items()}
        for side in sides
    ]
    found = state.pairing
    if found is None:
        return records
    if found.unlike:
        records = [
            {name: allowances.drop_single_pixels(record, found.unlike) for name, record in by_precision.items()}
            for by_precision in records
        ]
    if RUNNING_VARIANCE not in found.allowed:
        return records
    momenta, parts = allowances.read_momenta(found.matching.layers), launcher.plan.accumulate
    return [
        {
            precision: allowances.convert_to_biased_variance(record, momenta[side.contender.backend], accumulate=parts)
            for precision, record in by_precision.items()
        }
        for side, by_precision in zip(sides, records, strict=True)
    ]
