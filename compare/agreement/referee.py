"""The float64 referee: each side's own error at the timed precision, measured against the precision's noise floor.

A disagreement between two sides in low precision has no owner; each side's distance from its own float64 record has.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from compare.agreement.gates import PRECISION_LIMIT, ROUNDOFF32, Gate, changes, coarseness, relative_error
from compare.interface import Arrays

# Unit roundoff by precision (half the distance from 1 to the next number). TF32 keeps 10 bits of the fraction.
ROUNDOFF: Mapping[str, float] = {
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
}

# A side whose median error is this much smaller than the other's computes in a higher precision than was asked for.
_UNASKED = 30.0


@dataclass(frozen=True)
class Referee:
    """Errors against float64 by tensor, of either side, and the noise floor that they are measured by."""

    baseline: Mapping[str, float]
    contender: Mapping[str, float]
    floor: Mapping[str, float]

    @property
    def gate(self) -> Gate:
        """The precision gate: the largest error of either side over its tensor's noise floor."""
        strain = {name: max(self.baseline[name], self.contender[name]) / self.floor[name] for name in self.floor}
        worst = max(strain, key=lambda name: strain[name])
        passed = strain[worst] <= PRECISION_LIMIT and self.mismatch is None
        return Gate("precision", strain[worst], PRECISION_LIMIT, passed, worst)

    @property
    def mismatch(self) -> str | None:
        """Say so where one side is systematically more precise than the other, None otherwise."""
        names = list(self.floor)
        a, b = (_median([side[name] / self.floor[name] for name in names]) for side in (self.baseline, self.contender))
        if min(a, b) * _UNASKED >= max(a, b):
            return None
        owner, other = ("baseline", "contender") if a > b else ("contender", "baseline")
        return (
            f"precision mismatch: the {owner}'s median error is {max(a, b) / max(min(a, b), 1e-300):.0f} times the "
            f"{other}'s (TF32 on one side, excess precision, or a promoted or demoted tensor)"
        )

    def owner(self, name: str) -> str:
        """Say whose error is larger on one tensor, and whether it is rounding."""
        a, b = self.baseline[name], self.contender[name]
        side = "baseline" if a >= b else "contender"
        kind = "rounding" if max(a, b) <= PRECISION_LIMIT * self.floor[name] else "more than rounding"
        return f"{name}: the {side}'s error is larger ({max(a, b):.1e} against {min(a, b):.1e}), {kind}"


def judge(
    baseline: Mapping[str, Arrays], contender: Mapping[str, Arrays], precision: str, noise: Mapping[str, float]
) -> Referee:
    """Compare each side's record at `precision` with its own in float64.

    The floor of a tensor is its noise (`compare.recording.noise`) times the square root of the number of layers, or
    what float32 storage resolves of it, whichever is larger. The noise comes from rounding the inputs once; every layer
    rounds its output once more, and independent errors add in quadrature (Higham 2002, section 2.8). The state after
    the whole run (`delta/`) is left out: its noise is that of the last step.
    """
    names = [name for name in noise if not name.startswith("delta/")]
    sides: list[dict[str, float]] = []
    for side in (baseline, contender):
        reference, value = changes(side["float64"]), changes(side[precision])
        sides.append({name: relative_error(value[name], reference[name]) for name in names})
    depth = math.sqrt(max(1, sum(name.startswith("step1/activation/") for name in noise)))
    floor = {name: max(depth * noise[name], ROUNDOFF32 * coarseness(name, baseline["float64"])) for name in names}
    return Referee(sides[0], sides[1], floor)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
