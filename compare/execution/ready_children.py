"""Start children ahead while nothing is timed. They import their framework, may open their session, and then sleep.

Such a child differs in nothing from one that starts later: it is a process of its own, with the same variables.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import psutil

from compare.base.commands import Command
from compare.base.interface import ContenderFailed
from compare.execution.child import Child, close_all
from compare.machine import cpu

_PROCESSES_OF_A_CORE = 4

_BYTES = 2 * 2**30
"""Memory of a process that has imported a framework, rounded up."""


class ReadyChildren:
    """Children that wait, by a key that is equal for children that can stand for each other."""

    def __init__(self) -> None:
        self._waiting = dict[Hashable, list[Child | ContenderFailed]]()
        self._later = list[tuple[Hashable, Callable[[], Child]]]()
        self._working = set[int]()

    def start(self, wanted: Iterable[tuple[Hashable, Callable[[], Child]]]) -> None:
        """Start the wanted children that do not wait yet, in this order. Each comes with its key and its start."""
        counts = Counter({key: len(children) for key, children in self._waiting.items()})
        for key, start in wanted:
            counts[key] -= 1
            if counts[key] >= 0:
                continue
            try:
                child = start()
            except ContenderFailed:
                return  # a child that starts later says why
            self._waiting.setdefault(key, []).append(child)

    def has(self, key: Hashable) -> bool:
        """Tell whether a child waits."""
        return bool(self._waiting.get(key))

    def start_later(self, wanted: Sequence[tuple[Hashable, Callable[[], Child]]]) -> None:
        """Start the wanted children at the next call of `go_on`."""
        self._later += wanted

    def go_on(self) -> None:
        """Start the children that are wanted later."""
        self.start(self._later)
        self._later.clear()

    def take(self, key: Hashable) -> Child | None:
        """Return a waiting child, which its caller must close, or None.

        Raises:
            ContenderFailed: the child has failed while it waited.
        """
        children = self._waiting.get(key)
        if not children:
            return None
        child = children.pop(0)
        if isinstance(child, ContenderFailed):
            raise child
        return child

    def are_importing(self) -> bool:
        """Tell whether a child still imports."""
        children = (child for children in self._waiting.values() for child in children)
        return any(isinstance(child, Child) and not child.has_greeted() for child in children)

    def work_ahead(self, key: Hashable, number: int, commands: Sequence[Command[Any]]) -> None:
        """Start commands in the waiting child that is taken as this `number` of its key, if it has none yet."""
        children = self._waiting.get(key, ())
        child = children[number] if number < len(children) else None
        if isinstance(child, Child) and child.pid not in self._working:
            self._working.add(child.pid)
            try:
                child.send_ahead(commands)
            except ContenderFailed as failure:
                self._waiting[key][number] = failure

    def settle(self) -> None:
        """Wait until no child works any more. It must come before everything that is timed.

        If a command fails, the child is ended, because it may not have fitted beside others. Its round starts another.
        """
        for children in self._waiting.values():
            for index, child in reversed(list(enumerate(children))):
                if isinstance(child, Child):
                    try:
                        if not child.settle():
                            child.close()
                            del children[index]
                    except ContenderFailed as failure:
                        children[index] = failure

    def close(self) -> None:
        """End all waiting children."""
        every = [child for children in self._waiting.values() for child in children if isinstance(child, Child)]
        close_all(every)
        self._waiting.clear()


def count_at_once(processes: int) -> int:
    """Return how many groups of so many processes can wait, with memory for each, and few enough for the cores."""
    most = min(_PROCESSES_OF_A_CORE * cpu.count_usable_cores(), psutil.virtual_memory().available // _BYTES)
    return most // max(1, processes)


def have_cores(processes: int) -> bool:
    """Tell whether each of so many processes can have a core of its own."""
    return processes <= cpu.count_usable_cores()
