"""What the contenders of one run are called, and which they are where nobody names any."""

from collections.abc import Sequence

DEFAULT_CONTENDERS = ("torch", "jax")


def names(texts: Sequence[str]) -> list[str]:
    """Return a name for each contender as written, unique within the run: a repeated one is named `torch#2`."""
    found: list[str] = []
    for index, text in enumerate(texts):
        earlier = texts[:index].count(text)
        found.append(text if not earlier else f"{text}#{earlier + 1}")
    return found
