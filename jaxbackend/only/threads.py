"""The number of threads of XLA's programs on a CPU."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_POOL = "tf_XLAEigen"


def settings(devices: Sequence[Any]) -> dict[str, int]:
    """Return the size of the thread pool of one CPU device as `threads`.

    JAX does not tell it, so the threads with the pool's name are counted (proc(5)). Return nothing on a GPU, or where
    the system does not name threads. Return nothing for several CPU devices either: their pool has more threads, for
    exchanges that wait.
    """
    if len(devices) > 1 or devices[0].platform != "cpu":
        return {}
    count = list(_names()).count(_POOL)
    return {"threads": count} if count else {}


def _names() -> Iterator[str]:
    for path in Path("/proc/self/task").glob("*/comm"):
        try:
            yield path.read_text().strip()
        except OSError:
            continue  # the thread has ended
