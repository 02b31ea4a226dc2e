"""Names of contenders, and the contenders that a run has by default."""

from collections.abc import Sequence

DEFAULT_CONTENDERS = ("torch", "jax")


def make_names(texts: Sequence[str]) -> list[str]:
    """Return a unique name for each contender as written. The second `torch` is named `torch#2`."""
    names: list[str] = []
    for index, text in enumerate(texts):
        earlier = texts[:index].count(text)
        names.append(text if not earlier else f"{text}#{earlier + 1}")
    return names
