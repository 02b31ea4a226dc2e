"""Tell whether a later run is slower, or takes more memory, than an earlier run of the same work. Pure functions.

Step times are compared by each run's median blocks by round (`compare.base.statistics.estimate_independent_ratio`).
A figure of a contender is a

- REGRESSION, if the whole interval of its ratio lies above 1 and the estimate above 1 + threshold;
- IMPROVEMENT, if the whole interval lies below 1 and the estimate below 1 / (1 + threshold);
- UNCHANGED, if the whole interval lies within the threshold;
- INCONCLUSIVE otherwise.

A regression needs both conditions. Without the interval, a noisy run without any change would fail half of the time.
Without the threshold, enough rounds would find a difference that does not matter. A rule with the whole interval above
the threshold would pass every noisy run. A true slowdown of 3 % fails at 3 % in every second run.

Step times are judged if both runs proved the work and certified it. Otherwise they are shown with the reason.

Memory is counted, not sampled, so its interval has no width. `process_bytes` is shown and not judged: it holds much
besides the step, and changes from launch to launch (by 10 % and more in JAX on a CPU).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compare.base import statistics, typed_json
from compare.base.interface import Refused
from compare.base.statistics import Ratio
from compare.base.typed_json import Json
from compare.results import verdicts
from compare.results.model import Contender, Result

REGRESSION, IMPROVEMENT, UNCHANGED, INCONCLUSIVE = "REGRESSION", "IMPROVEMENT", "UNCHANGED", "INCONCLUSIVE"

STEP_TIME, AGREEMENT, STATUS = "step time", "agreement", "status"
MEMORY = ("live_peak_bytes", "pool_peak_bytes", "static_bytes")

_SAME_WORK = (
    *("workload", "image", "precision", "batch_size", "device", "deterministic"),
    *("accumulate", "devices", "rotation", "machines", "batch_norm", "task", "batch_sizes"),
)


@dataclass(frozen=True)
class Change:
    """One figure of a contender in both runs.

    Attributes:
        contender: its name, empty for a figure of all contenders.
        figure: the figure's name.
        before: seconds, bytes or a word of the earlier run.
        after: the same of the later run.
        ratio: after over before.
        outcome: None if the figure is shown and not judged.
        reason: why, if it needs one.
    """

    contender: str
    figure: str
    before: float | str
    after: float | str
    ratio: Ratio | None
    outcome: str | None
    reason: str | None = None


@dataclass(frozen=True)
class _Side:
    """A contender in one of the runs."""

    result: Result
    contender: Contender
    batch_size: int | None = None

    @property
    def figure(self) -> str:
        return STEP_TIME if self.batch_size is None else f"p50 at batch {self.batch_size}"

    @property
    def is_timed(self) -> bool:
        return any(series.batch_size == self.batch_size for series in self.contender.list_series())

    @property
    def round_medians(self) -> list[float]:
        return list(verdicts.find_medians(self.result, self.contender, self.batch_size).values())

    @property
    def step_seconds(self) -> float | None:
        if self.batch_size is not None:
            latency = (self.contender.latency or {}).get(str(self.batch_size))
            return latency.p50 if latency else None
        step = self.contender.step_seconds
        return step.estimate if step else None


def find_other_work(old: Result, new: Result) -> list[str]:
    """Return the settings, and the device, that make two results incomparable, with both values."""
    pairs = {key: (getattr(old.spec, key), getattr(new.spec, key)) for key in _SAME_WORK}
    pairs["device's name"] = old.device_name, new.device_name
    return [f"{key} is {_format(a)} against {_format(b)}" for key, (a, b) in pairs.items() if a != b]


def find_changes(old: Result, new: Result, threshold: float) -> list[Change]:
    """Return the changes of every contender of the earlier result.

    Args:
        old: the earlier result.
        new: the later one.
        threshold: relative slowdown above which the gate fails, 0.03 for 3 %; 0 or more.

    Raises:
        Refused: the results have no contender in common, or no figure to compare.
    """
    before, after = ({each.name: each for each in result.contenders} for result in (old, new))
    common = [name for name in before if name in after]
    if not common:
        raise Refused(f"no contender in common: {', '.join(before)} against {', '.join(after)}")
    changes = [*_compare_agreement(old, new)]
    for name, contender in before.items():
        if name in after:
            changes += _compare_contender(_Side(old, contender), _Side(new, after[name]), threshold)
        else:
            changes.append(Change(name, STATUS, contender.status, "not there", None, INCONCLUSIVE, "in OLD only"))
    if all(change.outcome is None for change in changes):
        raise Refused(f"nothing to compare for {', '.join(common)}: no step times and no memory figures in both")
    return changes


def is_time(figure: str) -> bool:
    """Tell whether a figure is a time in seconds."""
    return figure == STEP_TIME or figure.startswith("p50")


def judge_ratio(ratio: Ratio, threshold: float) -> str:
    """Return the outcome of a ratio of after over before, by the module's rule."""
    fast, slow = 1 / (1 + threshold), 1 + threshold
    if ratio.low > 1 and ratio.estimate > slow:
        return REGRESSION
    if ratio.high < 1 and ratio.estimate < fast:
        return IMPROVEMENT
    return UNCHANGED if fast <= ratio.low and ratio.high <= slow else INCONCLUSIVE


def _format(value: Json) -> str:
    return str(typed_json.write(value))


def _compare_agreement(old: Result, new: Result) -> Iterator[Change]:
    before, after = old.agreement.status, new.agreement.status
    if (before, after) != ("skipped", "skipped"):
        outcome = _judge_status(before, after, "pass")
        reason = new.agreement.first_mismatch or (new.agreement.reason if outcome == REGRESSION else None)
        yield Change("", AGREEMENT, before, after, None, outcome, reason)


def _judge_status(before: str, after: str, good: str) -> str:
    if before == after:
        return UNCHANGED
    return REGRESSION if before == good else IMPROVEMENT if after == good else UNCHANGED


def _compare_contender(old: _Side, new: _Side, threshold: float) -> Iterator[Change]:
    before, after, name = old.contender, new.contender, old.contender.name
    if (before.status, after.status) != ("ok", "ok"):
        outcome = _judge_status(before.status, after.status, "ok")
        yield Change(name, STATUS, before.status, after.status, None, outcome, after.reason)
        return
    if unproven := after.unproven or before.unproven:
        words = ["unproven" if side.unproven else "ok" for side in (before, after)]
        outcome = INCONCLUSIVE if before.unproven else REGRESSION
        yield Change(name, STATUS, words[0], words[1], None, outcome, unproven)
    else:
        for size in old.result.spec.batch_sizes or (None,):
            yield from _compare_times(replace(old, batch_size=size), replace(new, batch_size=size), threshold)
    for figure in (*MEMORY, "process_bytes"):
        a, b = (side.memory.figure(figure) if side.memory else None for side in (before, after))
        if a and b and a > 0 and b > 0:
            ratio = Ratio(b / a, b / a, b / a, new.result.spec.confidence)
            yield Change(name, figure, a, b, ratio, judge_ratio(ratio, threshold) if figure in MEMORY else None)


def _compare_times(old: _Side, new: _Side, threshold: float) -> Iterator[Change]:
    """Yield the change of a step time, or of the p50 of requests of one batch size."""
    name, figure = old.contender.name, old.figure
    if old.is_timed and new.is_timed:
        yield _compare_step_time(old, new, threshold)
    elif old.is_timed:
        seconds = old.step_seconds or "no round"
        yield Change(name, figure, seconds, "not timed", None, INCONCLUSIVE, "NEW has no timed rounds")
    elif old.result.spec.is_cut_off:
        seconds = new.step_seconds or "not timed"
        yield Change(name, figure, "not timed", seconds, None, INCONCLUSIVE, "OLD has no timed rounds")


def _compare_step_time(old: _Side, new: _Side, threshold: float) -> Change:
    name, figure, confidence = old.contender.name, old.figure, new.result.spec.confidence
    rounds = [side.round_medians for side in (old, new)]
    counts = " against ".join(str(len(medians)) for medians in rounds)
    if min(map(len, rounds)) < verdicts.LEAST_ROUNDS:
        a, b = (side.step_seconds or "no round" for side in (old, new))
        return Change(name, figure, a, b, None, INCONCLUSIVE, f"{counts} rounds count; needed: 2 and 2")
    a, b = (statistics.estimate_geometric_interval(medians, confidence).estimate for medians in rounds)
    ratio = statistics.estimate_independent_ratio(rounds[0], rounds[1], confidence)
    sides = {"OLD": old, "NEW": new}
    uncertified = [label for label, side in sides.items() if side.result.agreement.status != "pass"]
    if uncertified:
        lack = "lack" if len(uncertified) == 2 else "lacks"
        reason = f"a speed is judged only with agreement, which {' and '.join(uncertified)} {lack}"
        return Change(name, figure, a, b, ratio, None, reason)
    outcome = judge_ratio(ratio, threshold)
    is_different = outcome in (REGRESSION, IMPROVEMENT)
    return Change(name, figure, a, b, ratio, outcome, _explain_search(old, new) if is_different else None)


def _explain_search(old: _Side, new: _Side) -> str | None:
    """Say which runs chose their kernels in one search for all rounds. Another search may choose other kernels."""
    once = [label for label, side in (("OLD", old), ("NEW", new)) if side.contender.kernel_search == "once"]
    each = " each" if len(once) == 2 else ""
    if not once:
        return None
    return (
        f"{' and '.join(once)} had one search for kernels{each}; no interval covers the kernels that another search "
        "would choose (--search-anew)"
    )
