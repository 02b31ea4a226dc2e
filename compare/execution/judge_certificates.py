"""Judge records case by case, beside the children that record, and delete the records that have been judged."""

import itertools
from concurrent.futures import Executor, Future
from functools import partial
from threading import Lock

from compare.agreement import allowances, certificate
from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.certificate import Certificate
from compare.base import tensors
from compare.base.interface import INFER, Arrays
from compare.execution.certificate_cases import Case, Evidence
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun, RunState


class Judge:
    """Judges every contender against the baseline, case by case, in other threads.

    All records of a large model together would fill a disk. So a contender's records of a case are deleted once they
    are judged, and the baseline's with those of the last contender. If the disk has no room for all, contenders record
    one after the other.
    """

    def __init__(self, launcher: Launcher, state: RunState, evidence: Evidence, threads: Executor) -> None:
        self._launcher, self._state, self._evidence, self._threads = launcher, state, evidence, threads
        self._certificates: dict[tuple[str, Case], Future[Certificate]] = {}
        others = [run.contender.name for run in state.uncertified]
        self._waiting = {case: set(others) for case in evidence.cases}
        self._lock, self._open = Lock(), 0
        self._unsure = list[tuple[Case, str]]()
        self._admitted = {run.contender.name for run in state.certified[:2]}

    def look(self) -> list[Case]:
        """Begin to judge new complete records, and delete records that will never be judged.

        Return the cases that have failed by a few perturbed runs, and now wait for all.
        """
        baseline, evidence, unsure = self._state.baseline, self._evidence, list[Case]()
        while self._unsure:
            case, name = self._unsure.pop()
            del self._certificates[name, case]
            unsure += [] if case in evidence.unsure else [case]
            evidence.unsure.add(case)
            with self._lock:
                self._open -= 1
        for case, run in itertools.product(evidence.cases, self._state.uncertified):
            names = tuple(side.contender.name for side in (baseline, run))
            if (names[1], case) in self._certificates:
                continue
            if evidence.is_complete(case, names):
                with self._lock:
                    self._open += 1
                future = self._threads.submit(_judge, self._launcher, self._state, (baseline, run), case, evidence)
                self._certificates[names[1], case] = future
                future.add_done_callback(partial(self._end, case, names[1], evidence.has_all_noise(case)))
            elif (baseline.status != "ok" and not evidence.is_complete(case, names[:1])) or (
                run.status != "ok" and not evidence.is_recorded(case, names[1])
            ):
                self._delete_records(case, names[1])
        return unsure

    def is_working(self) -> bool:
        """Tell whether records are being judged, which then frees their space on the disk."""
        return self._open > 0

    def may_record(self, name: str) -> bool:
        """Tell whether a contender may record.

        The baseline and the first contender may. Another one may if the disk has room for its records, or if all
        contenders before it have been judged. The first complete record shows how much room is needed.
        """
        are_judged = all(self._admitted.isdisjoint(waiting) for waiting in self._waiting.values())
        if name not in self._admitted and (are_judged or self._has_room()):
            self._admitted.add(name)
        return name in self._admitted

    def _has_room(self) -> bool:
        """Tell whether the disk has room for all missing records, one more contender and one run of noise.

        No case is judged before all its noise is known.
        """
        evidence, baseline = self._evidence, self._state.baseline.contender.name
        needed = sum(
            evidence.missing_bytes(case, name)
            for case, waiting in self._waiting.items()
            for name in self._admitted
            if (waiting if name == baseline else name in waiting)
        )
        needed += sum(map(evidence.missing_bytes, evidence.cases))
        needed += 0 if all(map(evidence.is_noise_known, evidence.cases)) else evidence.unmoved_bytes()
        return bool(evidence.largest_bytes) and needed <= tensors.find_room(self._launcher.scratch)

    def conclude(self) -> None:
        """Give a certificate to every contender with complete records, if the baseline's are complete too."""
        evidence, baseline = self._evidence, self._state.baseline.contender.name
        for run in self._state.uncertified:
            name = run.contender.name
            futures = {str(case): self._certificates.get((name, case)) for case in evidence.cases}
            if any(future is None for future in futures.values()):
                continue
            combined = certificate.combine(
                {case: future.result() for case, future in futures.items() if future is not None}
            )
            gates = [evidence.judge_determinism(side) for side in (baseline, name) if side in evidence.repeated]
            combined = combined.extended([max(gates, key=lambda gate: gate.value or 0.0)] if gates else [])
            pairing = self._state.pairing
            self._state.certificates[name] = combined if pairing is None else pairing.explain(combined)

    def _end(self, case: Case, name: str, has_all: bool, judged: Future[Certificate]) -> None:
        """Delete the records of a judged case. If more noise may let it pass, keep them, to judge it again."""
        if not has_all and judged.exception() is None and not judged.result().passed:
            self._unsure.append((case, name))
            return
        self._delete_records(case, name)
        with self._lock:
            self._open -= 1

    def _delete_records(self, case: Case, name: str) -> None:
        """Delete a contender's records of a case, and the baseline's if no other contender waits for them.

        A record of the first case that is repeated stays, because it is compared with its repetition in the end.
        """
        deterministic, evidence = self._launcher.plan.deterministic, self._evidence
        kept = evidence.precision if deterministic and case == next(iter(evidence.cases)) else None
        evidence.delete(case, name, kept)
        with self._lock:
            self._waiting[case].discard(name)
            if not self._waiting[case]:
                evidence.delete(case, self._state.baseline.contender.name, kept)


def _judge(
    launcher: Launcher, state: RunState, sides: tuple[ContenderRun, ContenderRun], case: Case, evidence: Evidence
) -> Certificate:
    """Return the certificate of two sides over one case."""
    plan = launcher.plan
    baseline, contender = _load_comparable(state, sides, case, evidence)
    noise, normalised = evidence.noise(case), plan.workload.optimizer.name == "adam"
    notes = list[str]()
    if plan.task == INFER:
        count = len(baseline["float64"])
        baseline, contender = allowances.drop_folded(baseline, contender)
        noise = noise.only(contender["float64"])
        if dropped := count - len(baseline["float64"]):
            notes.append(f"{dropped} outputs of convolutions are no values of their own where batch norm is folded")
    judged = certificate.judge(baseline, contender, plan.precision, noise, normalised=normalised)
    return judged.extended((), notes=notes)


def _load_comparable(
    state: RunState, sides: tuple[ContenderRun, ContenderRun], case: Case, evidence: Evidence
) -> list[dict[str, Arrays]]:
    """Return both sides' records by precision, without the differences that are accepted."""
    records = [
        {precision: record.load() for precision, record in evidence.records[side.contender.name, case].items()}
        for side in sides
    ]
    pairing = state.pairing
    if pairing is None:
        return records
    if pairing.unlike:
        records = [
            {name: allowances.bring_into_rows(record, pairing.unlike) for name, record in by_precision.items()}
            for by_precision in records
        ]
    if RUNNING_VARIANCE not in pairing.allowed:
        return records
    momenta, plan = allowances.read_momenta(pairing.matching.layers), state.plan
    devices = plan.devices if plan.batch_norm == "local" else 1
    return [
        {
            precision: allowances.convert_to_biased_variance(
                record, momenta[side.contender.backend], accumulate=plan.accumulate, devices=devices
            )
            for precision, record in by_precision.items()
        }
        for side, by_precision in zip(sides, records, strict=True)
    ]
