"""Whether a later run is slower, or takes more memory, than an earlier one of the same work. Pure functions.

Step times are compared by the rounds' median blocks of either run (`compare.base.statistics.independent_ratio`), and a
figure of a contender is a

- REGRESSION, where the whole interval of its ratio lies above 1 and the estimate above 1 + threshold;
- IMPROVEMENT, where the whole interval lies below 1 and the estimate below 1 / (1 + threshold);
- UNCHANGED, where the whole interval lies within the threshold;
- INCONCLUSIVE else.

Both halves of the first two are needed: without the interval, a noisy run would fail half of the time at no change at
all; without the threshold, enough rounds would find a difference that nobody minds. To ask for the whole interval above
the threshold would let a noisy run pass whatever it is. What is 3 % slower in truth fails at 3 % in every second run.

Step times are judged of work that was proved and certified in both runs; others are told, with the reason.

Memory is counted, not sampled: its interval has no width. What the process takes (`process_bytes`) holds much that is
not the step's and changes from launch to launch (by 10 % and more in JAX on a CPU), so it is told and not judged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compare.base import statistics, typed_json
from compare.base.interface import Refused
from compare.base.statistics import Ratio
from compare.results import model, verdicts

Object = Mapping[str, Any]

REGRESSION, IMPROVEMENT, UNCHANGED, INCONCLUSIVE = "REGRESSION", "IMPROVEMENT", "UNCHANGED", "INCONCLUSIVE"
_DIFFERENT = REGRESSION, IMPROVEMENT

STEP_TIME, AGREEMENT, STATUS = "step time", "agreement", "status"
MEMORY = ("live_peak_bytes", "pool_peak_bytes", "static_bytes")

_SAME_WORK = ("workload", "image", "precision", "batch_size", "device", "deterministic")
_ALSO: Object = {"accumulate": 1, "devices": 1, "rotation": 1, "machines": 1, "batch_norm": "sync"}
"""What older results do not say, with what it then was."""


@dataclass(frozen=True)
class Change:
    """One figure of a contender in both runs: seconds, bytes or a word; `ratio` is after over before.

    `contender` is empty for what is about all of them, `outcome` None for what is told and not judged.
    """

    contender: str
    figure: str
    before: float | str
    after: float | str
    ratio: Ratio | None
    outcome: str | None
    reason: str | None = None


def unlike(old: Object, new: Object) -> list[str]:
    """Return in what two results are not of the same work on the same kind of device, in words."""
    pairs = {key: (old["spec"][key], new["spec"][key]) for key in _SAME_WORK}
    pairs |= {key: (old["spec"].get(key, other), new["spec"].get(key, other)) for key, other in _ALSO.items()}
    a, b = (model.Environment(extra=each["environment"]).device_name(each["spec"]["device"]) for each in (old, new))
    pairs["device's name"] = a, b
    return [f"{key} is {a} against {b}" for key, (a, b) in pairs.items() if a != b]


def changes(old: Object, new: Object, threshold: float) -> list[Change]:
    """Return what became of every contender of the earlier result.

    Args:
        old: the earlier result.
        new: the later one.
        threshold: relative slowdown above which the gate fails, 0.03 for 3 %; 0 or more.

    Raises:
        Refused: where a result names a contender twice, they have none in common, or nothing of it to compare.
    """
    before, after = _by_name(old), _by_name(new)
    common = [name for name in before if name in after]
    if not common:
        raise Refused(f"no contender in common: {', '.join(before)} against {', '.join(after)}")
    found = [*_agreement(old, new)]
    for name, contender in before.items():
        if name in after:
            found += _contender(old, new, contender, after[name], threshold)
        else:
            found.append(Change(name, STATUS, contender["status"], "not there", None, INCONCLUSIVE, "in OLD only"))
    if all(change.outcome is None for change in found):
        raise Refused(f"nothing to compare of {', '.join(common)}: no step times and no memory figures in both")
    return found


def judged(ratio: Ratio, threshold: float) -> str:
    """Return the outcome of a ratio of after over before, by the module's rule."""
    fast, slow = 1 / (1 + threshold), 1 + threshold
    if ratio.low > 1 and ratio.estimate > slow:
        return REGRESSION
    if ratio.high < 1 and ratio.estimate < fast:
        return IMPROVEMENT
    return UNCHANGED if fast <= ratio.low and ratio.high <= slow else INCONCLUSIVE


def _by_name(result: Object) -> dict[str, Object]:
    names = [each["name"] for each in result["contenders"]]
    if twice := [name for name in names if names.count(name) > 1]:
        raise Refused(f"the result of {result['created']} names {twice[0]} twice; allowed: once")
    return dict(zip(names, result["contenders"], strict=True))


def _agreement(old: Object, new: Object) -> Iterator[Change]:
    before, after = old["agreement"]["status"], new["agreement"]["status"]
    if (before, after) != ("skipped", "skipped"):
        worse, better = (each == "pass" and before != after for each in (before, after))
        outcome = REGRESSION if worse else IMPROVEMENT if better else UNCHANGED
        reason = new["agreement"]["first_mismatch"] or (new["agreement"]["reason"] if worse else None)
        yield Change("", AGREEMENT, before, after, None, outcome, reason)


def _contender(old: Object, new: Object, before: Object, after: Object, threshold: float) -> Iterator[Change]:
    name = before["name"]
    if (before["status"], after["status"]) != ("ok", "ok"):
        worse, better = before["status"] == "ok", after["status"] == "ok"
        outcome = REGRESSION if worse else IMPROVEMENT if better else UNCHANGED
        yield Change(name, STATUS, before["status"], after["status"], None, outcome, after["reason"])
        return
    if unproven := after.get("unproven") or before.get("unproven"):  # older results do not say
        was, now = ("unproven" if side.get("unproven") else "ok" for side in (before, after))
        yield Change(name, STATUS, was, now, None, INCONCLUSIVE if was == "unproven" else REGRESSION, unproven)
    elif before["step_seconds"] and after["step_seconds"]:
        yield _step_time(old, new, before, after, threshold)
    elif before["step_seconds"]:
        was = _estimate(before) or "no round"
        yield Change(name, STEP_TIME, was, "not timed", None, INCONCLUSIVE, "NEW has no timed rounds")
    elif old["spec"]["rounds"] < old["spec"]["rounds_requested"]:
        now = _estimate(after) or "not timed"
        yield Change(name, STEP_TIME, "not timed", now, None, INCONCLUSIVE, "OLD has no timed rounds")
    for figure in (*MEMORY, "process_bytes"):
        a, b = (_bytes(side, figure) for side in (before, after))
        if a > 0 and b > 0:
            ratio = Ratio(b / a, b / a, b / a, new["spec"]["confidence"])
            outcome = judged(ratio, threshold) if figure in MEMORY else None
            yield Change(name, figure, a, b, ratio, outcome)


def _estimate(contender: Object) -> float | None:
    return contender["step_seconds"]["estimate"] if contender["step_seconds"] else None


def _medians(result: Object, contender: Object) -> list[float]:
    return list(verdicts.medians(model.from_json(result), typed_json.read(model.Contender, contender)).values())


def _bytes(contender: Object, figure: str) -> int:
    return (contender["memory"] or {figure: 0})[figure] or 0


def _step_time(old: Object, new: Object, before: Object, after: Object, threshold: float) -> Change:
    name, confidence = before["name"], new["spec"]["confidence"]
    rounds = [_medians(*side) for side in ((old, before), (new, after))]
    counts = " against ".join(str(len(each)) for each in rounds)
    if min(map(len, rounds)) < verdicts.LEAST_ROUNDS:
        a, b = (_estimate(side) or "no round" for side in (before, after))
        return Change(name, STEP_TIME, a, b, None, INCONCLUSIVE, f"{counts} rounds count; needed: 2 and 2")
    a, b = (statistics.geometric_interval(each, confidence).estimate for each in rounds)
    ratio = statistics.independent_ratio(rounds[0], rounds[1], confidence)
    uncertified = [which for which, side in (("OLD", old), ("NEW", new)) if side["agreement"]["status"] != "pass"]
    if uncertified:
        said = f"no speed is judged without agreement, which {' and '.join(uncertified)} lack"
        return Change(name, STEP_TIME, a, b, ratio, None, said + ("s" if len(uncertified) == 1 else ""))
    outcome = judged(ratio, threshold)
    return Change(name, STEP_TIME, a, b, ratio, outcome, _search(before, after) if outcome in _DIFFERENT else None)


def _search(before: Object, after: Object) -> str | None:
    """Return whose kernels were chosen by one search for all rounds, which another need not choose."""
    once = [which for which, side in (("OLD", before), ("NEW", after)) if side.get("kernel_search") == "once"]
    each = " each" if len(once) == 2 else ""
    what = "no interval contains what another would choose (--search-anew)"
    return f"{' and '.join(once)} had one search for kernels{each}; {what}" if once else None
