"""How close work comes to the device's measured bandwidth and arithmetic, and which of them limits it."""

from compare.base.profiles import Peaks

BYTES, ARITHMETIC, LAUNCHES = "bytes", "arithmetic", "launches"
_SHORT_SECONDS = 1e-5
_FAR = 0.2


def judge(seconds: float, kernels: float, size: float, flops: float, peaks: Peaks) -> tuple[float | None, str | None]:
    """Return the least possible time over the time taken, at most 1, and the limit.

    Launches are the limit of many short kernels that are far from both peaks. Without bytes, operations and time there
    is neither figure.
    """
    if seconds <= 0:
        return None, None
    by_bytes = size / peaks.bandwidth_bytes_per_second if peaks.bandwidth_bytes_per_second else 0.0
    by_flops = flops / peaks.flops_per_second if peaks.flops_per_second else 0.0
    least = max(by_bytes, by_flops)
    if not least:
        return None, None
    share = min(1.0, least / seconds)
    if share < _FAR and kernels and seconds / kernels < _SHORT_SECONDS:
        return share, LAUNCHES
    return share, BYTES if by_bytes >= by_flops else ARITHMETIC
