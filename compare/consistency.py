"""What must hold in a result between its parts, and a JSON schema cannot say."""

from collections.abc import Iterator, Mapping
from typing import Any

from compare.interface import Refused

Object = Mapping[str, Any]


def check(result: Object) -> None:
    """Check a result that keeps to the schema.

    Raises:
        Refused: for a comparison that claims a speed although the agreement of its pair failed, an interval that does
            not hold its estimate, or telemetry whose series do not belong together.
    """
    _no_claim_without_agreement(result)
    for place, interval in _intervals(result):
        if interval and not interval["low"] <= interval["estimate"] <= interval["high"]:
            raise Refused(f"{place} does not hold its estimate; allowed: low <= estimate <= high")
    _series_belong_together(result)


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


_SHOWN = ("sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "power_watts", "clock_reasons")


def _series_belong_together(result: Object) -> None:
    series: Mapping[str, list[Any]] = result.get("telemetry", {}).get("samples", {})
    count = len(series.get("seconds", ()))
    for name, values in series.items():
        if len(values) != count:
            raise Refused(f"telemetry.samples.{name} has {len(values)} values; allowed: {count}, as many as seconds")
    if count and (missing := [name for name in _SHOWN if name not in series]):
        raise Refused(f"telemetry.samples lacks {', '.join(missing)}; required there, as there are samples")
