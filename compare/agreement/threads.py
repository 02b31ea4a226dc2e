"""Figures of many tensors, computed by several threads: NumPy lets others work while it is at a chunk of an array."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from compare.base.interface import Arrays

T = TypeVar("T")

MOST_THREADS = 5
"""Threads of one certificate."""
_LARGE = 2**24
"""Elements of a record for which threads are worth it; with small tensors they hinder each other."""


def by_name(names: Iterable[str], figure: Callable[[str], T], record: Arrays) -> dict[str, T]:
    """Return `figure(name)` of tensors of a record by name, in the names' order.

    Every thread takes the next name when it is done with one. What `figure` raises is raised when all that was begun is
    done, of several the first in the names' order.
    """
    order = list(names)
    found, failed, left = dict[str, T](), dict[int, Exception](), iter(enumerate(order))

    def work(_: int) -> None:
        for index, name in left:
            try:
                found[name] = figure(name)
            except Exception as error:
                failed[index] = error
                return

    count = MOST_THREADS if sum(array.size for array in record.values()) >= _LARGE else 1
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(work, range(count)))
    if failed:
        raise failed[min(failed)]
    return {name: found[name] for name in order}
