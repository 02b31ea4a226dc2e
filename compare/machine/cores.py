"""How many cores a machine's processes have to divide among themselves."""

import os


def usable() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
