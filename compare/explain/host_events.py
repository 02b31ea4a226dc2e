"""What the host does in the profiled steps: waits for the device, and times in which it does nothing visible."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from compare.base.profiles import TORCH, Profile

_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_RUNTIME = ("cuda_runtime", "cuda_driver")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_OPERATIONS = ("aten::", "cpp_fused", "triton_")
"""Begin the names of events in which torch works. Events of layers and of autograd span Python, too."""


@dataclass(frozen=True)
class HostEvents:
    """What the host does in a step.

    Attributes:
        waits: waits for the device per step by name, if there is at least one in every step.
        gap_seconds: the longest time without any event of the host and the device, in the same place of every step.
    """

    waits: Mapping[str, float] = field(default_factory=dict[str, float])
    gap_seconds: float = 0.0


def read(profile: Profile) -> HostEvents:
    """Return what the host does in a profile. JAX's profile has no events of the host."""
    if profile.kind != TORCH or not profile.events:
        return HostEvents()
    counts = Counter(str(event["name"]) for event in profile.events if event["name"] in _WAITS)
    counts.subtract({"cudaDeviceSynchronize": 2})  # the profile's own end waits for the device
    waits = {name: count / profile.steps for name, count in counts.items() if count >= profile.steps}
    return HostEvents(waits, _find_gap(profile) if profile.steps > 1 else 0.0)


def _find_gap(profile: Profile) -> float:
    """Return the longest gap that every step has in the same place: after and before events of the same names.

    A busy machine stops Python in other places in each step.
    """
    gaps: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    busy = sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]), str(event["name"]), event["cat"] in _ON_DEVICE)
        for event in profile.events
        if event["cat"] in (*_RUNTIME, *_ON_DEVICE) or str(event["name"]).startswith(_OPERATIONS)
        if event["name"] not in _WAITS
    )
    last, reached = "", busy[0][0] if busy else 0.0
    for begin, end, name, is_on_device in busy:
        if begin > reached:
            gaps[last, name].append(1e-6 * (begin - reached))
        reached = max(reached, end)
        if not is_on_device:  # the device's events follow the host's at no fixed distance
            last = name
    repeated = (sorted(places, reverse=True)[profile.steps - 1 :] for places in gaps.values())
    return max((seconds[0] for seconds in repeated if seconds), default=0.0)
