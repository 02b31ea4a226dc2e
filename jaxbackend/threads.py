"""With how many threads XLA's programs compute on a CPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_POOL = "tf_XLAEigen"


def count(devices: Sequence[Any]) -> int | None:
    """Return how many threads the pool has in which programs compute on a CPU.

    JAX does not tell, so the threads of its name are counted (proc(5)). None on a GPU; on several devices of a CPU,
    whose pool has threads for every exchange that may be waited for; and where the system does not name threads.
    """
    if len(devices) > 1 or devices[0].platform != "cpu":
        return None
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count(_POOL) or None
