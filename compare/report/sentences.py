"""What every report says in words: what was trained, each comparison, the certificate. Plain text, no markup."""

from collections.abc import Mapping, Sequence
from typing import Any

from compare.results import verdicts

DASH = "\N{EN DASH}"
"""Stands for a figure that there is none of."""

_ALL_DIGITS = 17  # that tell one float from every other
_SMALL, _LARGE = 1e-6, 1e6  # beyond these a number is written with its power of ten


def heading(result: Mapping[str, Any]) -> str:
    """Return in words what was trained, on which device and how often.

    The device's own name comes from the environment, where it is known.
    """
    spec = result["spec"]
    count = spec["parameter_count"]
    parameters = "" if count is None else f"{counted(count, 'parameter')}, "
    rounds = f"{counted(spec['rounds'], 'round')}, " if spec["rounds"] else ""
    parts = spec.get("accumulate", 1)
    batch = f"batch {spec['batch_size']}" + (f" in {parts} micro-batches" if parts > 1 else "")
    batch += over_devices(result)
    allowed = spec.get("pair", {}).get("allowed", ())
    accepted = f" (accepted differences: {', '.join(allowed)})" if allowed else ""
    return (
        f"{spec['workload']}{accepted} trained on {device(result)} in {spec['precision']}: {batch}, "
        f"{counted(spec['epochs'], 'epoch')}, {rounds}seed {spec['seed']}; "
        f"{parameters}images {'x'.join(map(str, spec['image']))}, "
        f"data {spec['data_source']}"
    )


def sentence(comparison: Mapping[str, Any]) -> str:
    """Return one comparison in words; for INVALID its reason, and nothing that could be read as a speed."""
    verdict, ratio = comparison["verdict"], comparison["ratio"]
    if verdict == "INVALID":
        return f"{claim(comparison)}: INVALID, their times must not be compared: {comparison['reason']}"
    if ratio is None:
        return f"{claim(comparison)}: {verdict}, {comparison['reason'] or 'no ratio was measured'}"
    rounds = counted(comparison["rounds"], "round")
    text = f"{claim(comparison)} ({ratio_text(ratio)}, {rounds}): {verdict}"
    if verdict == "INCONCLUSIVE" and not ratio["low"] <= 1 <= ratio["high"]:
        margin = percent(comparison["margin"])
        text += f"; the interval excludes 1, but holds differences both below and above the margin of {margin}"
    if comparison["detectable"] is not None:
        text += f"; the smallest difference that {rounds} would show is about {percent(comparison['detectable'])}"
    return f"{text}; {comparison['reason']}" if comparison["reason"] else text


def claim(comparison: Mapping[str, Any]) -> str:
    """Return what one comparison says and no figure that it rests on: how a sentence on it begins."""
    baseline, contender, verdict = comparison["baseline"], comparison["contender"], comparison["verdict"]
    if verdict == "INVALID" or comparison["ratio"] is None:
        return f"{contender} against {baseline}"
    estimate = comparison["ratio"]["estimate"]
    return {
        "FASTER": f"{contender} is {_factor(1 / estimate)} times as fast as {baseline}",
        "SLOWER": f"{contender} takes {_factor(estimate)} times as long as {baseline}",
        "EQUIVALENT": f"{contender} and {baseline} take the same time to within {percent(comparison['margin'])}",
        "INCONCLUSIVE": f"{contender} against {baseline} is undecided",
    }[verdict]


def basis(results: Sequence[Mapping[str, Any]]) -> str:
    """Return what a caption must state for figures to stand alone: what was trained, n, interval and hardware."""
    if len(results) == 1:
        return f"Setting: {setting(results[0])}; {replication(results[0])}."
    devices = " or ".join(dict.fromkeys(device(result) for result in results))
    counts = sorted({_counting(result) for result in results if result["spec"]["rounds"]})
    if not counts:
        return f"Setting: {devices}; {nothing_timed(results)}."
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    confidence = " or ".join(sorted({percent(result["spec"]["confidence"], 6) for result in results}))
    return (
        f"Setting: {devices}; n = {count} rounds of fresh processes in each result, {confidence} intervals by "
        "Student's t over rounds."
    )


def setting(result: Mapping[str, Any]) -> str:
    """Return what was trained, on what."""
    spec = result["spec"]
    batch = f"batch {spec['batch_size']}{way(spec)}{over_devices(result)}"
    return f"{spec['workload']} in {spec['precision']}, {batch}, on {device(result)}"


def way(spec: Mapping[str, Any]) -> str:
    """Return what else makes steps of one batch unlike others' work, to follow the batch; empty where nothing does."""
    parts = spec.get("accumulate", 1)
    told = [f" in {parts} micro-batches"] if parts > 1 else []
    told += [", deterministic"] if spec.get("deterministic") else []
    return "".join(told)


def over_devices(result: Mapping[str, Any], *, who: bool = True) -> str:
    """Return over how many devices batches were split, to follow the batch; empty where they were not.

    `who` adds the contenders that took whole batches on one device, as far as they came.
    """
    spec = result["spec"]
    count, machines = spec.get("devices", 1), spec.get("machines", 1)
    if count == 1:
        return ""
    told = [each for each in result["contenders"] if each["settings"]]
    alone = [each["name"] for each in told if each["settings"].get("devices") == 1]
    but = f" ({', '.join(alone)}: 1 device)" if who and alone else ""
    where = f" of {machines} machines" if machines > 1 else ""
    return f" over {count} devices{where}{but}, batch norm {spec.get('batch_norm', 'sync')}"


def source(result: Mapping[str, Any], how_often: str) -> str:
    """Return which samestep measured a result, when and how often."""
    version: Any = result["environment"].get("samestep")
    made = f"samestep {version}" if isinstance(version, str) else "samestep"
    return f"Measured by {made} at {result['created']}, {how_often}; result {result['id']}."


def nothing_timed(results: Sequence[Mapping[str, Any]]) -> str:
    """Return why results have no rounds: they were cut off before one, or are certificates."""
    return "no round was whole" if any(map(verdicts.is_comparison, results)) else "nothing was timed"


def replication(result: Mapping[str, Any]) -> str:
    """Return how often it was timed, and what its intervals are."""
    spec, count = result["spec"], _counting(result)
    if not spec["rounds"]:
        return nothing_timed([result])
    void = spec["rounds"] - count
    left_out = f" ({void} of {counted(spec['rounds'], 'round')} void)" if void else ""
    return (
        f"n = {counted(count, 'round')} of fresh processes{left_out}, "
        f"{percent(spec['confidence'], 6)} intervals by Student's t over rounds"
    )


def gate_value(gate: Mapping[str, Any], digits: int) -> str:
    """Return a gate's value in so many digits, in more where they would show its limit; a dash for none."""
    found, limit = gate["value"], gate["limit"]
    if found is None:
        return DASH
    while found != limit and digits < _ALL_DIGITS and float(f"{found:.{digits}g}") == limit:
        digits += 1
    return f"{found:.{digits}g}"


def agreement_lines(agreement: Mapping[str, Any]) -> list[str]:
    """Return the certificate in words: its status, a line for each gate, and every pair that failed."""
    reason = f" ({agreement['reason']})" if agreement["reason"] else ""
    lines = [f"agreement in {agreement['precision']}: {agreement['status']}{reason}"]
    for gate in agreement["gates"]:
        worst = f", worst tensor {gate['worst_tensor']}" if gate["worst_tensor"] else ""
        passed = "pass" if gate["passed"] else "FAIL"
        lines.append(f"  {gate['name']}: {gate_value(gate, 3)} (limit {gate['limit']:.3g}), {passed}{worst}")
    failed = [pair for pair in agreement["pairs"] if pair["status"] == "fail"]
    for pair in failed:
        mismatch = pair["first_mismatch"] or "not known"
        lines.append(f"  {pair['contender']} against {pair['baseline']}: fail, first mismatch {mismatch}")
    if agreement["first_mismatch"] and not failed:
        lines.append(f"  first mismatch {agreement['first_mismatch']}")
    return lines


def percent(fraction: float, digits: int = 3) -> str:
    """Return a fraction in percent: 0.95 is `95 %`."""
    return f"{100 * fraction:.{digits}g} %"


def _counting(result: Mapping[str, Any]) -> int:
    """Return how many rounds are not void."""
    return result["spec"]["rounds"] - len({each["round"] for each in result["voided"]})


def device_name(environment: Any, device: str) -> str | None:
    """Return the name of the CPU or the first GPU in a result's environment, None where it does not tell."""
    try:
        name = environment["nvidia"]["gpus"][0]["name"] if device == "cuda" else environment["cpu"]["model"]
    except (KeyError, IndexError, TypeError):
        return None
    return name if isinstance(name, str) else None


def ratio_text(ratio: Mapping[str, float]) -> str:
    """Return a ratio and its interval in words."""
    estimate, low, high = ratio_figures(ratio)
    return f"ratio {estimate}, {percent(ratio['confidence'], 6)} interval {low} to {high}"


def ratio_figures(ratio: Mapping[str, float]) -> tuple[str, str, str]:
    """Return estimate, low and high with enough decimals that none of the three reads as 0 or 1 where it is not."""
    values = [ratio[key] for key in ("estimate", "low", "high")]
    near = [value for value in values if value not in (0, 1)]
    decimals = next((count for count in range(3, 6) if not any(round(value, count) in (0, 1) for value in near)), 6)
    estimate, low, high = (
        f"{value:,.{decimals}f}" if value in (0, 1) or _SMALL < value < _LARGE else f"{value:.3g}" for value in values
    )
    return estimate, low, high


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 is `1 round`, 2 is `2 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return text that is safe to show: a question mark for each character that a terminal would act on."""
    return "".join(character if character.isprintable() else "?" for character in text)


def plain(text: str) -> str:
    """Return text of a result file on one line, with `?` for each character that shows nothing or steers a display."""
    return printable(" ".join(text.split()))


def device(result: Mapping[str, Any]) -> str:
    """Return the device that a result's contenders trained on, by its own name where the environment tells it."""
    kind = result["spec"]["device"]
    name = device_name(result["environment"], kind)
    return f"{kind} ({name})" if name else kind


def _factor(value: float) -> str:
    if value >= _LARGE:
        return f"{value:.3g}"
    decimals = next((count for count in range(2, 6) if round(value, count) != 1), 6)
    return f"{value:,.{decimals}f}"
