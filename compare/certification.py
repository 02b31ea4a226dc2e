"""Making certificates: children record each contender's steps, the pure gates judge the records."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from compare import data, environment, recorders, recording
from compare.agreement import allowances, certificate, gates, referee, settings
from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.certificate import Certificate
from compare.agreement.gates import Gate
from compare.agreement.referee import Noise
from compare.data import store
from compare.interface import Arrays
from compare.launcher import Launcher, Outcome, Outcomes
from compare.plan import Plan
from compare.recorders import Command, Recorder
from compare.workloads import PAIR

_STEPS = 3
_NOISE_RUNS = 20
_CONDITIONING_RUNS = 5
_CORES_FOR_MANY = 8
_NUMBERS = itertools.count()
# Errors do not depend on the batch; the time of float64 does, and the size of what is compared: every activation.
_LARGEST_BATCH, _MOST_PIXELS = 64, 2**14


@dataclass(frozen=True)
class Case:
    """One batch and image size that a certificate is made at; `image_size` None is the workload's own."""

    batch_size: int
    image_size: int | None

    def __str__(self) -> str:
        return f"batch {self.batch_size}" + ("" if self.image_size is None else f", {self.image_size} pixels")


def native(plan: Plan) -> Case:
    """Return the case of the plan itself, its batch cut to 64 images, fewer if they are large, at least two a part."""
    parts, (height, width, _) = plan.accumulate * plan.devices, plan.workload.model.image
    most = max(2 * parts, min(_LARGEST_BATCH, _MOST_PIXELS // (height * width)) // parts * parts)
    return Case(min(plan.batch_size, most), None)


def adversarial(plan: Plan) -> tuple[Case, ...]:
    """Return the native case, the least batch at an odd image size, and an odd batch at another even size.

    With micro-batches, or parts of several devices, it is they that are the least and odd. A model that takes one size
    only keeps it. Of a user's own pair there is one more case, an odd batch at the other size of 2k and 2k + 1, of
    which its own is one: halved and rounded up they are k and k + 1, so that the layers behind a halving see an odd and
    an even size as well.
    """
    size, parts = plan.workload.model.image[0], plan.accumulate * plan.devices
    if plan.workload.model.family == PAIR:
        return native(plan), Case(3 * parts, (size ^ 1 or 2) if plan.resizable else None)
    if not plan.resizable:
        return native(plan), Case(2 * parts, None), Case(3 * parts, None)
    odd, even = (size + 1, size + 2) if size % 2 == 0 else (size, size + 1)
    return native(plan), Case(2 * parts, odd), Case((7 if 7 * even**2 <= _MOST_PIXELS else 3) * parts, even)


def certify(launcher: Launcher, outcomes: Outcomes, cases: Sequence[Case]) -> None:
    """Certify every contender that is alive against the baseline, over all cases."""
    certifying = Certifying(launcher, outcomes, cases)
    recorders.side_by_side(launcher, certifying.recorders)
    certifying.conclude()


class Certifying:
    """The certificates of every contender that is alive with the baseline, over all cases.

    `recorders` make the records. A case is judged as soon as both sides' are there, while children work on the next.
    """

    def __init__(self, launcher: Launcher, outcomes: Outcomes, cases: Sequence[Case]) -> None:
        self._launcher, self._outcomes = launcher, outcomes
        self._evidence = evidence = _Evidence({case: _dataset(launcher, case) for case in cases}, self._judge)
        self._alive, self._parts = outcomes.alive, _parts(launcher.plan)
        self._judged: dict[str, dict[str, Certificate]] = defaultdict(dict)
        self.recorders = [
            Recorder(
                outcome,
                list(_commands(launcher, outcomes, outcome, part, evidence)),
                "certificate",
                fresh="float64" in part,  # which reports the memory of a process that has done nothing
            )
            for part in self._parts
            for outcome in self._alive
        ]

    def conclude(self) -> None:
        """Give every contender that is alive, as the baseline is, its certificate."""
        baseline, repeated = self._outcomes.contenders[0], self._evidence.repeated
        for outcome in self._outcomes.contenders[1:]:
            if baseline.status == "ok" and outcome.status == "ok":
                name, other = baseline.contender.name, outcome.contender.name
                found = self._judged[other]
                made = certificate.combine({str(case): found[str(case)] for case in self._evidence.noise})
                both = [repeated[side] for side in (name, other) if side in repeated]
                made = made.extended([max(both, key=lambda gate: gate.value or 0.0)] if both else [])
                pairing = self._outcomes.pairing
                self._outcomes.certificates[other] = made if pairing is None else pairing.explained(made)

    def _judge(self, case: Case) -> None:
        """Judge every contender at a case at which it, the baseline and the noise are recorded."""
        baseline, evidence, plan = self._outcomes.contenders[0], self._evidence, self._launcher.plan
        needed = {precision for part in self._parts for precision in part}
        for outcome in self._outcomes.contenders[1:]:
            found = self._judged[outcome.contender.name]
            sides = baseline, outcome
            records = [evidence.records[side.contender.name, case] for side in sides]
            if case in evidence.noise and str(case) not in found and all(each.keys() >= needed for each in records):
                ours, theirs = _comparable(self._launcher, self._outcomes, sides, records)
                found[str(case)] = certificate.make(
                    ours,
                    theirs,
                    plan.precision,
                    evidence.noise[case],
                    normalised=plan.workload.optimizer.name == "adam",
                )


def certify_settings(outcomes: Outcomes) -> None:
    """Add to every certificate whether both sides run with the settings that decide the mathematics."""
    baseline = outcomes.contenders[0]
    for outcome in outcomes.alive:
        made = outcomes.certificates.get(outcome.contender.name)
        if made is not None and baseline.status == "ok":
            sides = baseline.settings, outcome.settings
            gate, mismatch, note = settings.gate(*sides), settings.unequal(*sides), settings.remark(*sides)
            outcomes.certificates[outcome.contender.name] = made.extended([gate], mismatch=mismatch, note=note)


def _comparable(
    launcher: Launcher, outcomes: Outcomes, sides: tuple[Outcome, Outcome], records: list[dict[str, Arrays]]
) -> list[dict[str, Arrays]]:
    """Return both sides' records by precision, with the differences that are accepted taken out of them."""
    found = outcomes.pairing
    if found is None or RUNNING_VARIANCE not in found.allowed:
        return records
    momenta, parts = allowances.momenta(found.matching.layers), launcher.plan.accumulate
    return [
        {
            precision: allowances.with_biased_variance(record, momenta[side.contender.backend], accumulate=parts)
            for precision, record in by_precision.items()
        }
        for side, by_precision in zip(sides, records, strict=True)
    ]


@dataclass
class _Evidence:
    """What the children recorded, by contender and case, of the datasets of `cases`; `added` is told of each addition.

    The case at which determinism is shown is recorded first, by the child that repeats it.
    """

    cases: Mapping[Case, Path]
    added: Callable[[Case], None]
    records: dict[tuple[str, Case], dict[str, Arrays]] = field(
        default_factory=lambda: defaultdict[tuple[str, Case], dict[str, Arrays]](dict)
    )
    noise: dict[Case, Noise] = field(default_factory=dict[Case, Noise])
    repeated: dict[str, Gate] = field(default_factory=dict[str, Gate])

    def keep_noise(self, case: Case, noise: Noise) -> None:
        """Keep a case's noise floors."""
        self.noise[case] = noise
        self.added(case)

    def keep(self, name: str, case: Case, precision: str, record: Arrays) -> None:
        """Keep a contender's record of a case."""
        self.records[name, case][precision] = record
        self.added(case)


def _parts(plan: Plan) -> list[tuple[str, ...]]:
    """Return the precisions that each child of a contender records: a child each where there are cores for it.

    So it is for a user's own pair, of which one side may take far longer than the other: to compile, or for its noise.
    """
    precisions = tuple(dict.fromkeys(("float64", "float32", plan.precision)))
    many = environment.cores() >= _CORES_FOR_MANY or plan.workload.model.family == PAIR
    return [(precision,) for precision in precisions] if many else [precisions]


def _commands(
    launcher: Launcher, outcomes: Outcomes, outcome: Outcome, precisions: Sequence[str], evidence: _Evidence
) -> Iterator[Command]:
    plan, name = launcher.plan, outcome.contender.name
    if "float64" in precisions:
        # Before its first command, a child has imported its framework and nothing else.
        yield Command("idle_memory", {"device": plan.device}, "memory", partial(setattr, outcome, "idle_bytes"))
    for case, dataset in evidence.cases.items():
        if "float64" in precisions and outcome is outcomes.contenders[0]:
            yield _noise(launcher, outcome, case, dataset, partial(evidence.keep_noise, case))
        for precision in precisions:
            keep = partial(evidence.keep, name, case, precision)
            yield _record(launcher, outcome, precision, case, dataset, keep)
    if plan.deterministic and plan.precision in precisions:
        case, dataset = next(iter(evidence.cases.items()))

        def repeated(again: Arrays) -> None:
            evidence.repeated[name] = gates.determinism(evidence.records[name, case][plan.precision], again)

        yield _record(launcher, outcome, plan.precision, case, dataset, repeated)


def _dataset(launcher: Launcher, case: Case) -> Path:
    if case.image_size is None:
        return launcher.dataset
    plan = launcher.plan
    path = launcher.scratch / f"dataset-{case.batch_size}-{case.image_size}.safetensors"
    made = data.load(plan.workload, folder=None, seed=plan.seed, batch_size=case.batch_size, image_size=case.image_size)
    store.save(made, path)
    return path


def _noise(launcher: Launcher, outcome: Outcome, case: Case, dataset: Path, keep: Callable[[Noise], None]) -> Command:
    perturbations = [(referee.ULP64, _CONDITIONING_RUNS)]
    roundoff = referee.ROUNDOFF.get(launcher.plan.precision)
    if roundoff is not None:
        perturbations.append((roundoff, _NOISE_RUNS))
    spec = _spec(launcher, outcome, "float64", case, dataset)
    arguments = {"spec": spec, "steps": _STEPS, "perturbations": perturbations}
    return Command("noise", arguments, "record", lambda floors: keep(Noise(*floors)))


def _record(
    launcher: Launcher, outcome: Outcome, precision: str, case: Case, dataset: Path, keep: Callable[[Arrays], None]
) -> Command:
    number = next(_NUMBERS)
    path = launcher.scratch / f"record-{number}.safetensors"
    spec = _spec(launcher, outcome, precision, case, dataset)
    arguments = {"spec": spec, "steps": _STEPS, "path": str(path)}
    return Command("record", arguments, "record", lambda names: keep(recording.load(path, names)))


def _spec(launcher: Launcher, outcome: Outcome, precision: str, case: Case, dataset: Path) -> dict[str, object]:
    changes = {"precision": precision, "batch_size": case.batch_size, "image_size": case.image_size}
    return launcher.spec(outcome, **changes, data=str(dataset))
