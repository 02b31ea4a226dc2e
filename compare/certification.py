"""Making certificates: children record each contender's steps, the pure gates judge the records."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from compare import jobs, recording
from compare.agreement import allowances, certificate, settings
from compare.agreement.allowances import RUNNING_VARIANCE
from compare.agreement.certificate import Certificate
from compare.evidence import Case, Evidence, Record
from compare.interface import Arrays
from compare.jobs import Command, Job, Queue
from compare.launcher import Launcher, Outcome, Outcomes, Progress
from compare.recording import Floor, Perturbation

_STEPS = 3
# Children of a contender that a GPU's memory holds: a record in float64 of the largest workloads takes 6 GB of an H200's.
_MOST_ON_A_GPU = 4
_NUMBERS = itertools.count()


def certify(launcher: Launcher, outcomes: Outcomes, cases: Sequence[Case], progress: Progress) -> None:
    """Certify every contender that is alive against the baseline, over all cases."""
    evidence = Evidence.of(launcher, cases)
    jobs.carry_out(launcher, queues(launcher, outcomes, evidence), partial(progress, "certify"))
    judge(launcher, outcomes, evidence)


def queues(launcher: Launcher, outcomes: Outcomes, evidence: Evidence) -> list[Queue]:
    """Return what is to be recorded of every contender that is alive, as jobs for its share of the cores."""
    alive, baseline = outcomes.alive, outcomes.contenders[0]
    children = jobs.share(len(alive) * launcher.plan.devices)
    if launcher.plan.device == "cuda":
        children = min(children, _MOST_ON_A_GPU)
    return [
        Queue(outcome, list(_jobs(launcher, outcome, outcome is baseline, evidence, children)), children)
        for outcome in alive
    ]


def judge(launcher: Launcher, outcomes: Outcomes, evidence: Evidence) -> None:
    """Judge every contender against the baseline, where all has been recorded of both."""
    baseline = outcomes.contenders[0]
    for outcome in outcomes.contenders[1:]:
        sides = baseline, outcome
        name, other = (side.contender.name for side in sides)
        if evidence.has_noise and evidence.has_records(name) and evidence.has_records(other):
            made = _judged(launcher, outcomes, sides, evidence)
            both = [evidence.determinism(side) for side in (name, other) if side in evidence.again]
            made = made.extended([max(both, key=lambda gate: gate.value or 0.0)] if both else [])
            outcomes.certificates[other] = made if outcomes.pairing is None else outcomes.pairing.explained(made)


def certify_settings(outcomes: Outcomes) -> None:
    """Add to every certificate whether both sides run with the settings that decide the mathematics."""
    baseline = outcomes.contenders[0]
    for outcome in outcomes.alive:
        made = outcomes.certificates.get(outcome.contender.name)
        if made is not None and baseline.status == "ok":
            sides = baseline.settings, outcome.settings
            gate, mismatch, note = settings.gate(*sides), settings.unequal(*sides), settings.remark(*sides)
            outcomes.certificates[outcome.contender.name] = made.extended([gate], mismatch=mismatch, note=note)


def _judged(launcher: Launcher, outcomes: Outcomes, sides: tuple[Outcome, Outcome], evidence: Evidence) -> Certificate:
    """Return the certificate of two sides over all cases."""
    plan, found = launcher.plan, dict[str, Certificate]()
    normalised = plan.workload.optimizer.name == "adam"
    for case in evidence.cases:
        baseline, contender = _comparable(launcher, outcomes, sides, case, evidence)
        noise = evidence.noise(case)
        found[str(case)] = certificate.make(baseline, contender, plan.precision, noise, normalised=normalised)
    return certificate.combine(found)


def _comparable(
    launcher: Launcher, outcomes: Outcomes, sides: tuple[Outcome, Outcome], case: Case, evidence: Evidence
) -> list[dict[str, Arrays]]:
    """Return both sides' records by precision, with the differences that are accepted taken out of them."""
    records = [
        {precision: load() for precision, load in evidence.records[side.contender.name, case].items()} for side in sides
    ]
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


def _jobs(launcher: Launcher, outcome: Outcome, noisy: bool, evidence: Evidence, children: int) -> Iterator[Job]:
    """Yield what a contender is asked; several children share the perturbed runs, one makes all of a case in one go."""
    name = outcome.contender.name
    # Before its first command, a child has imported its framework and nothing else.
    idle = {"device": launcher.plan.device}
    yield _job(Command("idle_memory", idle, "memory", partial(setattr, outcome, "idle_bytes")))
    parts = [[each] for each in evidence.perturbations] if children > 1 else [evidence.perturbations]
    for case, dataset in evidence.cases.items():
        for perturbations in parts if noisy else ():
            spec = _spec(launcher, outcome, "float64", case, dataset)
            arguments = {"spec": spec, "steps": _STEPS, "perturbations": perturbations}
            keep = partial(_keep_floors, evidence, case, perturbations)
            yield _job(Command("noise", arguments, "record", keep))
        for precision in evidence.precisions:
            keep = partial(evidence.records[name, case].__setitem__, precision)
            yield _job(_record(launcher, outcome, precision, case, dataset, keep))
    if launcher.plan.deterministic:
        case, dataset = next(iter(evidence.cases.items()))
        keep = partial(evidence.again.__setitem__, name)
        yield _job(_record(launcher, outcome, evidence.precision, case, dataset, keep))


def _job(command: Command) -> Job:
    return Job("certificate", [command])


def _keep_floors(evidence: Evidence, case: Case, made: Sequence[Perturbation], floors: Sequence[Floor]) -> None:
    evidence.floors[case].update(zip(made, floors, strict=True))


def _record(
    launcher: Launcher, outcome: Outcome, precision: str, case: Case, dataset: Path, keep: Callable[[Record], None]
) -> Command:
    number = next(_NUMBERS)
    path = launcher.scratch / f"record-{number}.safetensors"
    spec = _spec(launcher, outcome, precision, case, dataset)
    arguments = {"spec": spec, "steps": _STEPS, "path": str(path)}
    return Command("record", arguments, "record", lambda names: keep(partial(recording.load, path, names)))


def _spec(launcher: Launcher, outcome: Outcome, precision: str, case: Case, dataset: Path) -> dict[str, object]:
    changes = {"precision": precision, "batch_size": case.batch_size, "image_size": case.image_size}
    return launcher.spec(outcome, **changes, data=str(dataset))
