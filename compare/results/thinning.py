"""Leave out telemetry that no figure needs, so that a long run's result file stays small enough to read."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from compare.results.model import Gpu, Result, Samples


def thin(result: Result) -> Result:
    """Return a result without the telemetry between blocks. The samples next to each block stay.

    The same rounds are void, for the same reasons. `telemetry.left_out` counts the samples of all GPUs that are gone.
    """
    telemetry = result.telemetry
    windows = [
        window
        for contender in result.contenders
        if contender.step_seconds
        for blocks in contender.step_seconds.windows
        for window in blocks
    ]
    first, *others = (replace(gpu, samples=_thin_samples(gpu.samples, windows)) for gpu in telemetry.gpus)
    left_out = sum(map(_count, telemetry.gpus)) - sum(map(_count, (first, *others)))
    return replace(result, telemetry=replace(telemetry, samples=first.samples, others=tuple(others), left_out=left_out))


def _count(gpu: Gpu) -> int:
    return len(gpu.samples.get("seconds", ()))


def _thin_samples(samples: Samples, windows: Sequence[Sequence[float]]) -> Samples:
    needed = _find_needed(samples, windows)
    return {name: [values[index] for index in needed] for name, values in samples.items()}


def _find_needed(samples: Samples, windows: Sequence[Sequence[float]]) -> list[int]:
    seconds = samples.get("seconds", ())
    # The first sample that lists one of this run's processes shows that NVML lists them at all.
    needed = {next((index for index, own in enumerate(samples.get("own", ())) if own), 0)}
    for start, end in windows:
        # A counter tells what happened since the sample before, so one sample on either side is needed.
        needed.update(range(bisect_left(seconds, start) - 1, bisect_right(seconds, end) + 1))
    return [index for index in sorted(needed) if 0 <= index < len(seconds)]
