"""A compiler's program for an H200 as a list of kernels, and what moving their bytes would take."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

BYTES_PER_MILLISECOND = 4.2e9
"""What an H200 copies."""


class Kernel(NamedTuple):
    """One kernel of the program, or a few: what it is, its results or its name, where it comes from."""

    kind: str
    results: str
    origin: str
    milliseconds: float


def table(found: list[Kernel], count: int) -> Iterator[str]:
    """Yield time and number of kernels by kind, of all that are fused together, and the `count` that move most."""
    numbers = Counter(each.kind for each in found)
    times = {name: sum(each.milliseconds for each in found if each.kind == name) for name in numbers}
    for name in sorted(times, key=lambda name: -times[name]):
        yield f"{times[name]:8.3f} ms {numbers[name]:5} {name}"
    fused = [each for each in found if each.kind.startswith("fusion")]
    yield f"{sum(each.milliseconds for each in fused):8.3f} ms {len(fused):5} fusions together"
    for each in sorted(found, key=lambda each: -each.milliseconds)[:count]:
        yield f"  {each.milliseconds:8.3f} {each.kind:40} {each.results[:50]:50} {each.origin}"
