"""What is recorded for a certificate, and at which batch and image sizes; what of it is there, and what is missing."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compare.agreement import gates
from compare.agreement.floors import ULP64, Noise
from compare.agreement.gates import Gate
from compare.base import tensors
from compare.base.precisions import PRECISIONS, REFERENCE
from compare.base.records import Floor, Perturbation, Record
from compare.base.workloads import PAIR
from compare.data import dataset_file, datasets
from compare.execution.launcher import Launcher
from compare.settings.plan import Plan

# Perturbed runs: five at one ulp of float64, twenty at the precision's unit roundoff, of which the last five are at ten
# times it: that far an error may go, and there it may open a ReLU that no smaller one reaches.
_RUNS_OF_A_PART, _NEAR, _FAR = 5, (5, 10, 15), (20,)
# Errors do not depend on the batch; the time of float64 does, and the size of what is compared: every activation.
_LARGEST_BATCH, _MOST_PIXELS = 64, 2**14


@dataclass(frozen=True)
class Case:
    """One batch and image size that a certificate is made at; `image_size` None is the workload's own."""

    batch_size: int
    image_size: int | None

    def __str__(self) -> str:
        return f"batch {self.batch_size}" + ("" if self.image_size is None else f", {self.image_size} pixels")


def native_case(plan: Plan) -> Case:
    """Return the case of the plan itself, its batch cut to 64 images, fewer if they are large, at least two a part."""
    parts, (height, width, _) = plan.accumulate * plan.devices, plan.workload.model.image
    most = max(2 * parts, min(_LARGEST_BATCH, _MOST_PIXELS // (height * width)) // parts * parts)
    return Case(min(plan.batch_size, most), None)


def adversarial_cases(plan: Plan) -> tuple[Case, ...]:
    """Return the native case, the least batch at an odd image size, and an odd batch at another even size.

    With micro-batches, or parts of several devices, it is they that are the least and odd. A model that takes one size
    only keeps it. Of a user's own pair there is one more case, an odd batch at the other size of 2k and 2k + 1, of
    which its own is one: halved and rounded up they are k and k + 1, so that the layers behind a halving see an odd and
    an even size as well.
    """
    size, parts = plan.workload.model.image[0], plan.accumulate * plan.devices
    if plan.workload.model.family == PAIR:
        return native_case(plan), Case(3 * parts, (size ^ 1 or 2) if plan.resizable else None)
    if not plan.resizable:
        return native_case(plan), Case(2 * parts, None), Case(3 * parts, None)
    odd, even = (size + 1, size + 2) if size % 2 == 0 else (size, size + 1)
    return native_case(plan), Case(2 * parts, odd), Case((7 if 7 * even**2 <= _MOST_PIXELS else 3) * parts, even)


@dataclass
class Evidence:
    """What children record of the `cases`, whose datasets those are, at float64, float32 and the timed `precision`.

    `records` are by contender, case and precision, `again` those made twice, `floors` by case and `Perturbation`.
    `largest` is the size of the largest record in float64, in bytes, as those tell that are there; `least` is what one
    takes at least.
    """

    cases: Mapping[Case, Path]
    precision: str
    records: dict[tuple[str, Case], dict[str, Record]] = field(
        default_factory=lambda: defaultdict[tuple[str, Case], dict[str, Record]](dict)
    )
    again: dict[str, Record] = field(default_factory=dict[str, Record])
    floors: dict[Case, dict[Perturbation, Floor]] = field(
        default_factory=lambda: defaultdict[Case, dict[Perturbation, Floor]](dict)
    )
    largest: int = 0
    least: int = 0

    @classmethod
    def of(cls, launcher: Launcher, cases: Sequence[Case]) -> "Evidence":
        """Return what is still empty, the cases' datasets written."""
        return cls({case: _dataset(launcher, case) for case in cases}, launcher.plan.precision)

    @property
    def precisions(self) -> Sequence[str]:
        """The precisions that are recorded."""
        return tuple(dict.fromkeys(("float64", "float32", self.precision)))

    @property
    def _roundoff(self) -> float | None:
        """Return the unit roundoff of the timed precision, None where that is the reference itself."""
        return None if self.precision == REFERENCE else PRECISIONS[self.precision].roundoff

    @property
    def perturbations(self) -> Sequence[Perturbation]:
        """The perturbed runs of every case: of an ulp of float64, and of the precision's unit roundoff if that is more.

        They are in small parts, because the noise of a large model takes longer than all that is recorded of it.
        """
        found, roundoff = [(ULP64, 0, _RUNS_OF_A_PART)], self._roundoff
        if roundoff is not None:
            found += [(roundoff, first, first + _RUNS_OF_A_PART) for first in _NEAR]
            found += [(gates.PRECISION.limit * roundoff, first, first + _RUNS_OF_A_PART) for first in _FAR]
        return found

    def keep(self, case: Case, name: str, precision: str, record: Record) -> None:
        """Take what has been recorded of a contender."""
        self.records[name, case][precision] = record
        self.largest = max(self.largest, record.size if precision == "float64" else 2 * record.size)

    def size(self, precision: str) -> int:
        """Return the bytes that a record at this precision takes, as far as is known: but for float64, half as many."""
        known = max(self.largest, self.least)
        return known if precision == "float64" else known // 2

    def still(self) -> int:
        """Return the bytes that a run of noise keeps in files, of one run not perturbed: none while memory takes it.

        That is while memory takes it twice, for the perturbed run is there, too.
        """
        size = self.size("float64")
        return 0 if tensors.memory_takes(2 * size) else size

    def to_come(self, case: Case, name: str | None = None) -> int:
        """Return the bytes that are yet to be recorded of a case of a contender, of one of which nothing is there."""
        there = () if name is None else self.records[name, case]
        return sum(self.size(each) for each in self.precisions if each not in there)

    def is_whole(self, case: Case, names: Sequence[str]) -> bool:
        """Whether all has been recorded of a case, of a baseline and another contender by name."""
        return self.is_noise_known(case) and all(self.is_recorded(case, name) for name in names)

    def is_noise_known(self, case: Case) -> bool:
        """Whether every perturbed run of a case has been made."""
        return len(self.floors[case]) == len(self.perturbations)

    def is_recorded(self, case: Case, name: str) -> bool:
        """Whether a contender's steps of a case have been recorded at all precisions."""
        return len(self.records[name, case]) == len(self.precisions)

    def noise(self, case: Case) -> Noise:
        """Return the noise floors of a case: by tensor, the most of any perturbed run, for as much as one roundoff."""
        unit, floors = self._roundoff, defaultdict[float, Floor](dict)
        for (roundoff, *_), floor in self.floors[case].items():
            moved = roundoff if unit is None or roundoff == ULP64 else unit
            known = floors[moved]
            floors[moved] = {name: max(value * moved / roundoff, known.get(name, 0.0)) for name, value in floor.items()}
        return Noise(floors[ULP64], None if unit is None else floors[unit])

    def determinism(self, name: str) -> Gate:
        """Return the gate of a contender whose first case was recorded twice."""
        once = self.records[name, next(iter(self.cases))][self.precision]
        return gates.judge_determinism(once.load(), self.again[name].load())

    def forget(self, case: Case, name: str, kept: str | None = None) -> None:
        """Delete what is recorded of a case of a contender, but for the precision `kept`."""
        recorded = self.records[name, case]
        for precision in [each for each in recorded if each != kept]:
            recorded.pop(precision).delete()


def _dataset(launcher: Launcher, case: Case) -> Path:
    if case.image_size is None:
        return launcher.dataset
    plan = launcher.plan
    path = launcher.scratch / f"dataset-{case.batch_size}-{case.image_size}.safetensors"
    made = datasets.load(
        plan.workload, folder=None, seed=plan.seed, batch_size=case.batch_size, image_size=case.image_size
    )
    dataset_file.save(made, path)
    return path
