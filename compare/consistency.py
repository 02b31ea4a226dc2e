"""What must hold in a result between its parts, and a JSON schema cannot say."""

from collections.abc import Iterator, Mapping
from typing import Any

from compare.interface import Refused

Object = Mapping[str, Any]


def check(result: Object) -> None:
    """Check a result that keeps to the schema.

    Raises:
        Refused: for a comparison that claims a speed although the agreement of its pair failed, an interval that does
            not hold its estimate, telemetry whose series do not belong together, or a whole number written with a
            fraction where it is counted by.
    """
    _no_claim_without_agreement(result)
    for place, interval in _intervals(result):
        if interval and not interval["low"] <= interval["estimate"] <= interval["high"]:
            raise Refused(f"{place} does not hold its estimate; allowed: low <= estimate <= high")
    _series_belong_together(result)
    _whole(result)


def _no_claim_without_agreement(result: Object) -> None:
    pairs = result["agreement"]["pairs"]
    failed = {(pair["baseline"], pair["contender"]) for pair in pairs if pair["status"] == "fail"}
    for index, comparison in enumerate(result["comparisons"]):
        if (comparison["baseline"], comparison["contender"]) in failed and comparison["verdict"] != "INVALID":
            raise Refused(
                f"comparisons[{index}].verdict is {comparison['verdict']} although the agreement of "
                f"{comparison['contender']} with {comparison['baseline']} failed; allowed: INVALID"
            )


def _intervals(result: Object) -> Iterator[tuple[str, Object | None]]:
    for index, contender in enumerate(result["contenders"]):
        if contender["step_seconds"]:
            yield f"contenders[{index}].step_seconds.interval", contender["step_seconds"]["interval"]
    for index, comparison in enumerate(result["comparisons"]):
        yield f"comparisons[{index}].ratio", comparison["ratio"]


_SHOWN = ("seconds", "sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "power_watts", "clock_reasons")


def _series_belong_together(result: Object) -> None:
    telemetry = result.get("telemetry")
    if telemetry is None:
        return
    series: Mapping[str, list[Any]] = telemetry["samples"]
    count = len(series.get("seconds", ()))
    for name, values in series.items():
        if len(values) != count:
            raise Refused(f"telemetry.samples.{name} has {len(values)} values; allowed: {count}, as many as seconds")
    missing = [name for name in _SHOWN if name not in series]
    if missing and telemetry["reason"] is None:
        raise Refused(f"telemetry.samples lacks {', '.join(missing)}, and telemetry.reason does not say why")


def _whole(result: Object) -> None:
    """Refuse 64.0 for 64: a schema takes it for an integer, but nothing can be repeated 64.0 times."""
    counts = {f"spec.{key}": result["spec"][key] for key in ("batch_size", "rounds", "seed", "epochs")}
    bits = result.get("telemetry", {"samples": {}})["samples"].get("clock_reasons", ())
    counts |= {f"telemetry.samples.clock_reasons[{index}]": each for index, each in enumerate(bits)}
    for place, value in counts.items():
        if isinstance(value, float):
            raise Refused(f"{place} is {value}; allowed: a whole number without a fraction")
