"""Choose the batch and image sizes of a certificate, and keep its records."""

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

# Perturbed runs: five at one ulp of float64, fifteen at the precision's unit roundoff, and five at ten times that. An
# error may go that far, and may open a ReLU there that no smaller error reaches. In float32 few ReLUs open, so five at
# the roundoff are enough. Fewer runs only lower the floors.
_RUNS_OF_A_PART, _NEAR, _FAR = 5, (5, 10, 15), (20,)
# In float32 and float64, so many runs come first at one ulp, and so many at the largest distance.
_FIRST_RUNS = 1
# Errors do not depend on the batch, but the time of float64 does, and the size of all activations.
_LARGEST_BATCH, _MOST_PIXELS = 64, 2**14


@dataclass(frozen=True)
class Case:
    """A batch and image size of a certificate. `image_size` None is the workload's own."""

    batch_size: int
    image_size: int | None

    def __str__(self) -> str:
        return f"batch {self.batch_size}" + ("" if self.image_size is None else f", {self.image_size} pixels")


def make_native_case(plan: Plan) -> Case:
    """Return the case of the plan itself. Its batch has at most 64 images, fewer if they are large."""
    parts = plan.accumulate * plan.devices
    most = max(2 * parts, min(_LARGEST_BATCH, _MOST_PIXELS // plan.workload.model.pixels) // parts * parts)
    return Case(min(plan.batch_size, most), None)


def make_adversarial_cases(plan: Plan) -> tuple[Case, ...]:
    """Return the native case, the smallest batch at an odd image size, and an odd batch at another even size.

    With micro-batches or several devices, each part is the smallest or odd. A model that takes only one size keeps it.
    A user's own pair has one other case: an odd batch at the other size of 2k and 2k + 1. Halved and rounded up, these
    sizes are k and k + 1, so layers after a halving also see an odd and an even size.
    """
    size, parts = plan.workload.model.image[0], plan.accumulate * plan.devices
    if plan.workload.model.family == PAIR:
        return make_native_case(plan), Case(3 * parts, (size ^ 1 or 2) if plan.resizable else None)
    if not plan.resizable:
        return make_native_case(plan), Case(2 * parts, None), Case(3 * parts, None)
    odd, even = (size + 1, size + 2) if size % 2 == 0 else (size, size + 1)
    return make_native_case(plan), Case(2 * parts, odd), Case((7 if 7 * even**2 <= _MOST_PIXELS else 3) * parts, even)


@dataclass
class Evidence:
    """The records of all cases, at float64, float32 and the timed precision.

    Attributes:
        cases: the dataset of each case.
        precision: the timed precision.
        records: by contender and case, and then by precision.
        repeated: the second record of the first case, by contender.
        floors: the noise floors of each case by perturbation.
        unsure: the cases that failed by a few perturbed runs and need all.
        largest_bytes: the size of the largest record in float64, as far as records exist.
        least_bytes: the smallest size that such a record can have.
    """

    cases: Mapping[Case, Path]
    precision: str
    records: dict[tuple[str, Case], dict[str, Record]] = field(
        default_factory=lambda: defaultdict[tuple[str, Case], dict[str, Record]](dict)
    )
    repeated: dict[str, Record] = field(default_factory=dict[str, Record])
    floors: dict[Case, dict[Perturbation, Floor]] = field(
        default_factory=lambda: defaultdict[Case, dict[Perturbation, Floor]](dict)
    )
    unsure: set[Case] = field(default_factory=set[Case])
    largest_bytes: int = 0
    least_bytes: int = 0

    @classmethod
    def begin(cls, launcher: Launcher, cases: Sequence[Case]) -> "Evidence":
        """Write the datasets of the cases and return the evidence without records."""
        return cls({case: _write_dataset(launcher, case) for case in cases}, launcher.plan.precision)

    @property
    def precisions(self) -> Sequence[str]:
        """The precisions to record."""
        return tuple(dict.fromkeys(("float64", "float32", self.precision)))

    @property
    def _roundoff(self) -> float | None:
        """The unit roundoff of the timed precision, or None if that is the reference itself."""
        return None if self.precision == REFERENCE else PRECISIONS[self.precision].roundoff

    @property
    def perturbations(self) -> Sequence[Perturbation]:
        """The perturbed runs of every case: at an ulp of float64, and at the precision's unit roundoff if that is more.

        They come in small parts, because the noise of a large model takes longer than all its records.
        """
        parts, roundoff = [(ULP64, 0, _RUNS_OF_A_PART)], self._roundoff
        if roundoff is not None:
            near = _NEAR if roundoff > PRECISIONS["float32"].roundoff else _NEAR[:1]
            parts += [(roundoff, first, first + _RUNS_OF_A_PART) for first in near]
            parts += [(gates.PRECISION.limit * roundoff, first, first + _RUNS_OF_A_PART) for first in _FAR]
        return parts

    def list_perturbations(self, case: Case) -> Sequence[Perturbation]:
        """Return the perturbed runs by which a case is judged now.

        More runs only raise the floors. So a certificate that passes with a few runs would pass with all.
        """
        parts, roundoff = self.perturbations, self._roundoff
        if roundoff is not None and roundoff > PRECISIONS["float32"].roundoff:
            return parts
        few = [(roundoff, first, first + _FIRST_RUNS) for roundoff, first, _ in (parts[0], *parts[1:][-1:])]
        if case not in self.unsure:
            return few
        known = {(roundoff, first): end for roundoff, first, end in few}
        return [*few, *((roundoff, known.get((roundoff, first), first), end) for roundoff, first, end in parts)]

    def list_missing_perturbations(self, case: Case) -> Sequence[Perturbation]:
        """Return the perturbed runs by which a case is judged now, and that have not ended."""
        return [each for each in self.list_perturbations(case) if each not in self.floors[case]]

    def keep(self, case: Case, name: str, precision: str, record: Record) -> None:
        """Add a contender's record."""
        self.records[name, case][precision] = record
        self.largest_bytes = max(self.largest_bytes, record.size if precision == "float64" else 2 * record.size)

    def record_bytes(self, precision: str) -> int:
        """Return the bytes of a record at this precision, as far as known. Other precisions take half of float64."""
        known = max(self.largest_bytes, self.least_bytes)
        return known if precision == "float64" else known // 2

    def unmoved_bytes(self) -> int:
        """Return the bytes that noise keeps in files: the unmoved run, or 0 if memory takes it.

        The moved run is in memory too, so memory must take both.
        """
        size = self.record_bytes("float64")
        return 0 if tensors.memory_takes(2 * size) else size

    def missing_bytes(self, case: Case, name: str | None = None) -> int:
        """Return the bytes of the missing records of a contender and case. Without a name, count all records."""
        present = () if name is None else self.records[name, case]
        return sum(self.record_bytes(precision) for precision in self.precisions if precision not in present)

    def is_complete(self, case: Case, names: Sequence[str]) -> bool:
        """Tell whether the noise of a case and all records of these contenders are there."""
        return self.is_noise_known(case) and all(self.is_recorded(case, name) for name in names)

    def is_noise_known(self, case: Case) -> bool:
        """Tell whether every perturbed run has ended by which a case is judged now."""
        return not self.list_missing_perturbations(case)

    def has_all_noise(self, case: Case) -> bool:
        """Tell whether more perturbed runs would change nothing."""
        return case in self.unsure or self.list_perturbations(case) == self.perturbations

    def is_recorded(self, case: Case, name: str) -> bool:
        """Tell whether a contender's case is recorded at all precisions."""
        return len(self.records[name, case]) == len(self.precisions)

    def noise(self, case: Case) -> Noise:
        """Return the noise floors of a case: for each tensor the largest of all perturbed runs, per roundoff."""
        unit, floors = self._roundoff, defaultdict[float, Floor](dict)
        for (roundoff, *_), floor in list(self.floors[case].items()):
            moved = roundoff if unit is None or roundoff == ULP64 else unit
            known = floors[moved]
            floors[moved] = {name: max(value * moved / roundoff, known.get(name, 0.0)) for name, value in floor.items()}
        return Noise(floors[ULP64], None if unit is None else floors[unit])

    def judge_determinism(self, name: str) -> Gate:
        """Return the gate of a contender from the two records of its first case."""
        once = self.records[name, next(iter(self.cases))][self.precision]
        return gates.judge_determinism(once.load(), self.repeated[name].load())

    def delete(self, case: Case, name: str, kept: str | None = None) -> None:
        """Delete a contender's records of a case, except the record at the precision `kept`."""
        records = self.records[name, case]
        for precision in [each for each in records if each != kept]:
            records.pop(precision).delete()


def _write_dataset(launcher: Launcher, case: Case) -> Path:
    if case.image_size is None:
        return launcher.dataset
    plan = launcher.plan
    path = launcher.scratch / f"dataset-{case.batch_size}-{case.image_size}.safetensors"
    dataset = datasets.load(
        plan.workload, folder=None, seed=plan.seed, batch_size=case.batch_size, image_size=case.image_size
    )
    dataset_file.save(dataset, path)
    return path
