"""Making certificates: children record each contender's steps, the pure gates judge the records."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compare import data, recording
from compare.agreement import certificate, gates, referee, settings
from compare.agreement.gates import Gate
from compare.agreement.referee import Noise
from compare.child import Child
from compare.data import store
from compare.interface import Arrays
from compare.launcher import Launcher, Outcome, Outcomes
from compare.plan import Plan

_STEPS = 3
_NOISE_RUNS = 20
_CONDITIONING_RUNS = 5
_LARGEST_BATCH = 64  # of a certificate: errors do not depend on it, the time of float64 does


@dataclass(frozen=True)
class Case:
    """One batch and image size that a certificate is made at; `image_size` None is the workload's own."""

    batch_size: int
    image_size: int | None

    def __str__(self) -> str:
        return f"batch {self.batch_size}" + ("" if self.image_size is None else f", {self.image_size} pixels")


def native(plan: Plan) -> Case:
    """Return the case of the plan itself, its batch cut to 64 images, or to two a micro-batch."""
    parts = plan.accumulate
    return Case(min(plan.batch_size, max(2, _LARGEST_BATCH // parts) * parts), None)


def adversarial(plan: Plan) -> tuple[Case, ...]:
    """Return the native case, the least batch at an odd image size, and an odd batch at another even size.

    With micro-batches, it is they that are the least and odd.
    """
    size, parts = plan.workload.model.image[0], plan.accumulate
    odd, even = (size + 1, size + 2) if size % 2 == 0 else (size, size + 1)
    return native(plan), Case(2 * parts, odd), Case(7 * parts, even)


def certify(launcher: Launcher, outcomes: Outcomes, cases: Sequence[Case]) -> None:
    """Certify every contender that is alive against the baseline, over all cases."""
    precisions = list(dict.fromkeys(("float64", "float32", launcher.plan.precision)))
    datasets = {case: _dataset(launcher, case) for case in cases}
    records: dict[tuple[str, Case], dict[str, Arrays]] = {}
    repeated: dict[str, Gate] = {}
    noise: dict[Case, Noise] = {}
    for outcome in outcomes.alive:
        with launcher.child(outcome, purpose="certificate") as child:
            # Before its first command, a child has imported its framework and nothing else.
            deadline = launcher.plan.deadlines["memory"]
            outcome.idle_bytes = child.call("idle_memory", deadline, device=launcher.plan.device)
            for case in cases:
                if outcome is outcomes.contenders[0]:
                    noise[case] = _noise(launcher, child, outcome, case, datasets[case])
                records[outcome.contender.name, case] = {
                    precision: _record(launcher, child, outcome, precision, case, datasets[case])
                    for precision in precisions
                }
            if launcher.plan.deterministic:
                again = _record(launcher, child, outcome, launcher.plan.precision, cases[0], datasets[cases[0]])
                repeated[outcome.contender.name] = gates.determinism(
                    records[outcome.contender.name, cases[0]][launcher.plan.precision], again
                )
    baseline = outcomes.contenders[0]
    for outcome in outcomes.contenders[1:]:
        if baseline.status == "ok" and outcome.status == "ok":
            name, other = baseline.contender.name, outcome.contender.name
            made = certificate.combine(
                {
                    str(case): certificate.make(
                        records[name, case], records[other, case], launcher.plan.precision, noise[case]
                    )
                    for case in cases
                }
            )
            both = [repeated[side] for side in (name, other) if side in repeated]
            outcomes.certificates[other] = made.extended(
                [max(both, key=lambda gate: gate.value or 0.0)] if both else []
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


def _dataset(launcher: Launcher, case: Case) -> Path:
    if case.image_size is None:
        return launcher.dataset
    plan = launcher.plan
    path = launcher.scratch / f"dataset-{case.batch_size}-{case.image_size}.safetensors"
    made = data.load(plan.workload, folder=None, seed=plan.seed, batch_size=case.batch_size, image_size=case.image_size)
    store.save(made, path)
    return path


def _noise(launcher: Launcher, child: Child, outcome: Outcome, case: Case, dataset: Path) -> Noise:
    perturbations = [(referee.ULP64, _CONDITIONING_RUNS)]
    roundoff = referee.ROUNDOFF.get(launcher.plan.precision)
    if roundoff is not None:
        perturbations.append((roundoff, _NOISE_RUNS))
    spec = _spec(launcher, outcome, "float64", case, dataset)
    deadline = launcher.plan.deadlines["record"]
    floors = child.call("noise", deadline, spec=spec, steps=_STEPS, perturbations=perturbations)
    return Noise(*floors)


def _record(launcher: Launcher, child: Child, outcome: Outcome, precision: str, case: Case, dataset: Path) -> Arrays:
    path = launcher.scratch / f"record-{child.pid}-{precision}-{case.batch_size}.safetensors"
    spec = _spec(launcher, outcome, precision, case, dataset)
    names = child.call("record", launcher.plan.deadlines["record"], spec=spec, steps=_STEPS, path=str(path))
    return recording.load(path, names)


def _spec(launcher: Launcher, outcome: Outcome, precision: str, case: Case, dataset: Path) -> dict[str, object]:
    changes = {"precision": precision, "batch_size": case.batch_size, "image_size": case.image_size}
    return launcher.spec(outcome, **changes, data=str(dataset))
