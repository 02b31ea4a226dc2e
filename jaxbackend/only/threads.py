"""With how many threads XLA's programs compute on a CPU."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_POOL = "tf_XLAEigen"


def settings(devices: Sequence[Any]) -> dict[str, int]:
    """Return as `threads` how many the pool has in which programs compute on one device of a CPU.

    JAX does not tell, so those of its name are counted (proc(5)). Nothing on a GPU; on several devices of a CPU, whose
    pool has threads for every exchange that may be waited for; and where the system does not name threads.
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
            continue  # that thread has ended
