"""What every report says in words: what was trained, each comparison, the certificate. Plain text, no markup."""

from collections.abc import Mapping
from typing import Any

DASH = "\N{EN DASH}"
"""Stands for a figure that there is none of."""


def heading(result: Mapping[str, Any]) -> str:
    """Return in words what was trained, on which device and how often.

    The device's own name comes from the environment, where it is known.
    """
    spec = result["spec"]
    name = _device_name(result["environment"], spec["device"])
    device = f"{spec['device']} ({name})" if name else spec["device"]
    count = spec["parameter_count"]
    parameters = "" if count is None else f"{_counted(count, 'parameter')}, "
    rounds = f"{_counted(spec['rounds'], 'round')}, " if spec["rounds"] else ""
    parts = spec.get("accumulate", 1)
    batch = f"batch {spec['batch_size']}" + (f" in {parts} micro-batches" if parts > 1 else "")
    return (
        f"{spec['workload']} trained on {device} in {spec['precision']}: {batch}, "
        f"{_counted(spec['epochs'], 'epoch')}, {rounds}seed {spec['seed']}; "
        f"{parameters}images {'x'.join(map(str, spec['image']))}, "
        f"data {spec['data_source']}"
    )


def sentence(comparison: Mapping[str, Any]) -> str:
    """Return one comparison in words; for INVALID its reason, and nothing that could be read as a speed."""
    baseline, contender, verdict = comparison["baseline"], comparison["contender"], comparison["verdict"]
    if verdict == "INVALID":
        return f"{contender} against {baseline}: INVALID, their times must not be compared: {comparison['reason']}"
    ratio = comparison["ratio"]
    if ratio is None:
        return f"{contender} against {baseline}: {verdict}, {comparison['reason'] or 'no ratio was measured'}"
    estimate = ratio["estimate"]
    claim = {
        "FASTER": f"{contender} is {_factor(1 / estimate)} times as fast as {baseline}",
        "SLOWER": f"{contender} takes {_factor(estimate)} times as long as {baseline}",
        "EQUIVALENT": f"{contender} and {baseline} take the same time to within {percent(comparison['margin'])}",
        "INCONCLUSIVE": f"{contender} against {baseline} is undecided",
    }[verdict]
    rounds = _counted(comparison["rounds"], "round")
    text = f"{claim} ({_ratio(ratio)}, {rounds}): {verdict}"
    if comparison["detectable"] is not None:
        text += f"; with {rounds} this run could have seen {percent(comparison['detectable'])}"
    return f"{text}; {comparison['reason']}" if comparison["reason"] else text


def agreement_lines(agreement: Mapping[str, Any]) -> list[str]:
    """Return the certificate in words: its status, a line for each gate, and every pair that failed."""
    reason = f" ({agreement['reason']})" if agreement["reason"] else ""
    lines = [f"agreement in {agreement['precision']}: {agreement['status']}{reason}"]
    for gate in agreement["gates"]:
        value = DASH if gate["value"] is None else f"{gate['value']:.3g}"
        worst = f", worst tensor {gate['worst_tensor']}" if gate["worst_tensor"] else ""
        passed = "pass" if gate["passed"] else "FAIL"
        lines.append(f"  {gate['name']}: {value} (limit {gate['limit']:.3g}), {passed}{worst}")
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


def _device_name(environment: Any, device: str) -> str | None:
    try:
        name = environment["nvidia"]["gpus"][0]["name"] if device == "cuda" else environment["cpu"]["model"]
    except (KeyError, IndexError, TypeError):
        return None
    return name if isinstance(name, str) else None


def _factor(value: float) -> str:
    decimals = next((count for count in range(2, 6) if round(value, count) != 1), 6)
    return f"{value:,.{decimals}f}"


def _ratio(ratio: Mapping[str, float]) -> str:
    """Return ratio and interval with enough decimals that none of the three reads as 1 where it is not."""
    values = [ratio[key] for key in ("estimate", "low", "high")]
    near = [value for value in values if value not in (0, 1)]
    decimals = next((count for count in range(3, 6) if not any(round(value, count) in (0, 1) for value in near)), 6)
    estimate, low, high = (f"{value:,.{decimals}f}" for value in values)
    return f"ratio {estimate}, {percent(ratio['confidence'], 6)} interval {low} to {high}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
