"""What the contenders of one run are called, and which they are where nobody names any."""

from collections.abc import Sequence

from compare.workloads import PAIR, Workload

DEFAULT_CONTENDERS = ("torch", "jax")
PLAIN_CONTENDERS = ("torch:stock", "jax:pieces")
"""Neither compiles a program as large as a whole model: what tells whether two models are the same function."""


def certified(workload: Workload) -> tuple[str, ...]:
    """Return the contenders of a certificate that nobody has named, where nothing is timed."""
    return PLAIN_CONTENDERS if workload.model.family == PAIR else DEFAULT_CONTENDERS


def names(texts: Sequence[str]) -> list[str]:
    """Return a name for each contender as written, unique within the run: a repeated one is named `torch#2`."""
    found: list[str] = []
    for index, text in enumerate(texts):
        earlier = texts[:index].count(text)
        found.append(text if not earlier else f"{text}#{earlier + 1}")
    return found
