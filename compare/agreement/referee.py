"""The float64 referee: each side's own error at the timed precision, measured against the precision's noise floor.

In low precision, a difference between two sides does not show which one is wrong. Each side's distance from its own
float64 record does.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from compare.agreement import floors
from compare.agreement.floors import Noise
from compare.agreement.gates import PRECISION, Gate
from compare.agreement.measures import (
    compute_changes,
    compute_reference_size,
    compute_relative_error,
    measure_by_name,
    sort_by_execution,
)
from compare.base.interface import Arrays

# If one side's median error is this much smaller than the other's, it computes in a higher precision than requested.
_UNASKED = 30.0
_FIRST_FORWARD = ("step1/activation/", "step1/logits", "step1/loss", "step1/buffer/")


@dataclass(frozen=True)
class Referee:
    """Errors against float64 by tensor, of either side, and the noise floor that they are measured by."""

    baseline: Mapping[str, float]
    contender: Mapping[str, float]
    floor: Mapping[str, float]

    @property
    def failing(self) -> list[str]:
        """The tensors in which a side's error is more than rounding, in execution order."""
        over = [name for name in self.floor if self._strain(name) > PRECISION.limit]
        return sort_by_execution(over)

    def _strain(self, name: str) -> float:
        return max(self.baseline[name], self.contender[name]) / self.floor[name]

    @property
    def gate(self) -> Gate:
        """The precision gate: the largest error of either side over its tensor's noise floor."""
        worst = max(self.floor, key=self._strain)
        gate = PRECISION.judge(self._strain(worst), worst)
        return replace(gate, passed=gate.passed and self.mismatch is None)

    @property
    def mismatch(self) -> str | None:
        """Return in words that one side is systematically more precise, None if neither is.

        The difference must show from the first forward pass on. If rounding switches a ReLU on one side only, every
        gradient behind it changes. That is chance, and another batch shows it on the other side.
        """
        forward = [name for name in self.floor if name.startswith(_FIRST_FORWARD)]
        medians = self._medians(self.floor), self._medians(forward or self.floor)
        for owner, other, own in (("baseline", "contender", 0), ("contender", "baseline", 1)):
            times, at_first = (errors[own] / max(errors[1 - own], 1e-300) for errors in medians)
            if min(times, at_first) > _UNASKED:
                return (
                    f"precision mismatch: the {owner}'s median error is {times:.0f} times the {other}'s "
                    "(TF32 on one side, excess precision, or a promoted or demoted tensor)"
                )
        return None

    def _medians(self, names: Collection[str]) -> tuple[float, float]:
        """Return each side's median error on these tensors, in noise floors."""
        a, b = (_median([side[name] / self.floor[name] for name in names]) for side in (self.baseline, self.contender))
        return a, b

    def describe_owner(self, name: str) -> str:
        """Return in words whose error is larger on one tensor, to two digits, and whether it is rounding."""
        a, b = self.baseline[name], self.contender[name]
        side = "baseline" if a >= b else "contender"
        kind = "rounding" if max(a, b) <= PRECISION.limit * self.floor[name] else "more than rounding"
        larger, smaller = f"{max(a, b):.1e}", f"{min(a, b):.1e}"
        if larger == smaller:
            return f"{name}: the errors of both sides are alike ({larger}), {kind}"
        return f"{name}: the {side}'s error is larger ({larger} against {smaller}), {kind}"


def judge(
    baseline: Mapping[str, Arrays],
    contender: Mapping[str, Arrays],
    precision: str,
    noise: Noise,
    *,
    normalised: bool = False,
) -> Referee:
    """Compare each side's record at `precision` with its own in float64, by the floors of `noise`.

    Raises:
        ValueError: `noise` has none for this precision (`compare.agreement.floors.compute`).
    """
    sides: list[dict[str, float]] = []
    for side in (baseline, contender):
        reference, value, exact = compute_changes(side["float64"]), compute_changes(side[precision]), side["float64"]

        def error(name: str, reference: Arrays = reference, value: Arrays = value, exact: Arrays = exact) -> float:
            return compute_relative_error(
                value[name], reference[name], compute_reference_size(name, reference[name], exact)
            )

        sides.append(measure_by_name(noise.ulp, error, exact))
    floor = floors.compute(sides, baseline["float64"], precision, noise, normalised=normalised)
    return Referee(sides[0], sides[1], floor)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
