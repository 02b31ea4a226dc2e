"""Telemetry of a result that would be too large to be read again, less the samples that nothing is computed from."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

Samples = Mapping[str, Sequence[Any]]


def thinned(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without the samples that lie between two blocks, but for the nearest to each block.

    The same rounds are void, for the same reasons. `telemetry.left_out` is how many are gone, of all GPUs together.
    """
    telemetry = result["telemetry"]
    steps = [each["step_seconds"] for each in result["contenders"] if each["step_seconds"]]
    windows = [window for step in steps for blocks in step.get("windows", ()) for window in blocks]
    gpus = [telemetry, *telemetry.get("others", ())]
    first, *others = kept = [_chosen(gpu, windows) for gpu in gpus]
    left_out = sum(map(_count, gpus)) - sum(map(_count, kept))
    return {**result, "telemetry": {**first, "others": others, "left_out": left_out}}


def _count(gpu: Mapping[str, Any]) -> int:
    return len(gpu["samples"].get("seconds", ()))


def _chosen(gpu: Mapping[str, Any], windows: Sequence[Sequence[float]]) -> dict[str, Any]:
    samples: Samples = gpu["samples"]
    kept = _needed(samples, windows)
    return {**gpu, "samples": {name: [values[index] for index in kept] for name, values in samples.items()}}


def _needed(samples: Samples, windows: Sequence[Sequence[float]]) -> list[int]:
    seconds = samples.get("seconds", ())
    # Whether NVML lists this run's processes at all is told by the first sample that has one, wherever it lies.
    found = {next((index for index, own in enumerate(samples.get("own", ())) if own), 0)}
    for start, end in windows:
        # Counters tell what happened since the sample before, so that one on either side is needed.
        found.update(range(bisect_left(seconds, start) - 1, bisect_right(seconds, end) + 1))
    return [index for index in sorted(found) if 0 <= index < len(seconds)]
