"""The certificate of one pair: all gates, the evidence tensor by tensor, the first mismatch and its likely cause."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from compare.agreement import (
    gates,
    likely_causes,
    measures,
    referee,
)
from compare.agreement.floors import Noise
from compare.agreement.gates import RULES, Gate
from compare.base.interface import Arrays

STEPS = 3
"""Training steps that a certificate looks into."""

LIKELY_CAUSE = "; likely cause: "
"""Stands between the first mismatch and its cause."""

NOT_KEPT = "this certificate is not kept for later runs"
"""The beginning of a certificate's note that says why."""


@dataclass(frozen=True)
class Figures:
    """One tensor's figures. The last three are None if there is no precision gate.

    Attributes:
        e64, e32: error between the sides in float64 (as `floors.Noise` resolves it) and in float32.
        scaling: e32 / e64 as the scaling gate takes it.
        noise: floor at the timed precision.
        baseline_error, contender_error: each side's error against its own float64.
    """

    name: str
    e64: float
    e32: float
    scaling: float
    noise: float | None = None
    baseline_error: float | None = None
    contender_error: float | None = None


@dataclass(frozen=True)
class Certificate:
    """All gates of one pair.

    Attributes:
        gates: their outcomes.
        mismatch: what failed first in execution order, in words (None: nothing did).
        evidence: the figures tensor by tensor.
        notes: what a reader should know besides.
        complete: False where gates are missing, because a side failed before they could be judged.
        tensor: the tensor that `mismatch` is about, None where it is about none.
        cause: the likely cause of `mismatch`, None where none is known.
        repairs: differences between the models that change what they compute, each with the code that removes it.
    """

    gates: tuple[Gate, ...]
    mismatch: str | None
    evidence: tuple[Figures, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = True
    tensor: str | None = None
    cause: str | None = None
    repairs: tuple[str, ...] = ()

    @property
    def first_mismatch(self) -> str | None:
        """What failed first, and the likely cause, in one line."""
        return f"{self.mismatch}{LIKELY_CAUSE}{self.cause}" if self.mismatch and self.cause else self.mismatch

    @property
    def passed(self) -> bool:
        """Whether every gate passed, and none is missing."""
        return self.complete and all(gate.passed for gate in self.gates)

    @property
    def status(self) -> str:
        """`fail` where a gate failed, else `pass`, or `skipped` where some are missing."""
        if not all(gate.passed for gate in self.gates):
            return "fail"
        return "pass" if self.complete else "skipped"

    def extended(
        self, added: Iterable[Gate], *, mismatch: str | None = None, notes: Iterable[str] = ()
    ) -> "Certificate":
        """Return this certificate with more gates and notes. If there was no mismatch, the first failed gate becomes
        it.

        `mismatch` says it in words, in place of the failed gate's name and tensor.
        """
        more = tuple(added)
        failed = next((gate for gate in more if not gate.passed), None)
        return replace(
            self,
            gates=(*self.gates, *more),
            mismatch=self.mismatch or mismatch or (failed and f"{failed.name}: {failed.worst_tensor}"),
            tensor=self.tensor if self.mismatch else failed and failed.worst_tensor,
            notes=(*self.notes, *notes),
        )


def judge(
    baseline: Mapping[str, Arrays],
    contender: Mapping[str, Arrays],
    precision: str,
    noise: Noise,
    *,
    normalised: bool = False,
) -> Certificate:
    """Judge two contenders by their records, which `compare.worker.recording` makes: arrays by name, by precision.

    `normalised` says whether their optimizer divides by the gradient's size, as Adam does (`floors.compute`).
    Without a noise floor at `precision` (float64 is its own reference) the precision gate is left out.
    """
    try:
        e64 = gates.measure_errors(baseline["float64"], contender["float64"])
        e32 = gates.measure_errors(baseline["float32"], contender["float32"])
        if noise.roundoff is not None:
            gates.check_comparable(baseline[precision], contender[precision])
    except gates.Incomparable as problem:
        failed = tuple(rule.judge(None, None) for rule in (gates.SEMANTIC, gates.SCALING, gates.PRECISION))
        return Certificate(failed if noise.roundoff is not None else failed[:2], str(problem), tensor=problem.tensor)
    e64 = noise.resolve(e64, baseline["float64"])
    ratios = gates.measure_scaling(e32, e64, baseline, contender)
    order = measures.sort_by_execution(list(e64))
    failing = [name for name in order if gates.is_failure(e64[name], ratios[name])]
    first = mismatch = cause = None
    if failing:
        first = failing[0]
        mismatch = f"{first} (e64 {e64[first]:.1e}, e32/e64 {ratios[first]:.1e})"
        cause = likely_causes.find_cause(baseline["float64"], contender["float64"], failing)
    judged = (gates.judge_semantic(e64), gates.judge_scaling(ratios))
    if noise.roundoff is None:
        evidence = tuple(Figures(name, e64[name], e32[name], ratios[name]) for name in order)
        return Certificate(judged, mismatch, evidence, tensor=first, cause=cause)
    errors = referee.judge(baseline, contender, precision, noise, normalised=normalised)
    gate = errors.gate
    notes = tuple(
        note for note in (errors.mismatch, gate.worst_tensor and errors.describe_owner(gate.worst_tensor)) if note
    )
    if first is None and not gate.passed:
        first = next(iter(errors.failing), None)
        if first is not None:
            a, b = errors.baseline[first], errors.contender[first]
            side = baseline if a >= b else contender
            cause = likely_causes.find_switched_outputs(side["float64"], side[precision], first, max(a, b))
        mismatch = "; ".join(part for part in (first and errors.describe_owner(first), errors.mismatch) if part)
        notes = (f"in float64 both are the same function: what failed is how one side computes in {precision}", *notes)
    evidence = tuple(
        Figures(
            name, e64[name], e32[name], ratios[name], errors.floor[name], errors.baseline[name], errors.contender[name]
        )
        if name in errors.floor
        else Figures(name, e64[name], e32[name], ratios[name])
        for name in order
    )
    return Certificate((*judged, gate), mismatch, evidence, notes, tensor=first, cause=cause)


def combine(cases: Mapping[str, Certificate]) -> Certificate:
    """Return one certificate for several cases (by description): every gate at its worst, evidence named by case."""
    if len(cases) == 1:
        return next(iter(cases.values()))
    failed = [replace(c, mismatch=f"{case}: {c.mismatch}") for case, c in cases.items() if c.mismatch]
    evidence = [replace(each, name=f"{each.name} [{case}]") for case, c in cases.items() for each in c.evidence]
    notes = [f"{case}: {note}" for case, c in cases.items() for note in c.notes]
    named = [
        replace(gate, worst_tensor=gate.worst_tensor and f"{gate.worst_tensor} [{case}]")
        for case, c in cases.items()
        for gate in c.gates
    ]
    first = failed[0] if failed else Certificate((), None)
    return replace(first, gates=tuple(select_worst(named)), evidence=tuple(evidence), notes=tuple(notes))


def select_worst(outcomes: Iterable[Gate]) -> list[Gate]:
    """Return each gate's worst outcome: a failed one, else the one nearest to its limit."""
    by_name: dict[str, list[Gate]] = {}
    for gate in outcomes:
        by_name.setdefault(gate.name, []).append(gate)
    return [max(each, key=RULES[each[0].name].strain) for each in by_name.values()]
