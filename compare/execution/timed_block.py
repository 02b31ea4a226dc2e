"""Time one block of a contender while the others are quiet, and say how busy they were."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from compare.execution.launcher import Launcher
from compare.execution.round_validity import FOREIGN_CORES, Window
from compare.execution.run_state import ContenderRun
from compare.machine import cpu

BLOCK_SECONDS: Mapping[str, float] = {"cpu": 0.02, "cuda": 0.1}
PALINDROMES = 3
"""How often contenders take their turns forth and back in a round."""

MOST_LEAD_SECONDS = 1.0
"""How long a block leads in at most, while the other contenders are busy."""

_T = TypeVar("_T")


class Busy(NamedTuple):
    """The window of a block, and the CPU seconds that other contenders took meanwhile."""

    window: Window
    idle: float


def attempt(run: ContenderRun, action: Callable[[], object]) -> None:
    """Do something for a contender that has not failed, and mark it if that fails."""
    if run.status == "ok":
        run.attempt("timed rounds", action)


def count_idle_cores(blocks: Sequence[Busy]) -> float:
    """Return how many cores other contenders kept busy during one contender's blocks."""
    duration = sum(end - start for (start, end), _ in blocks)
    return sum(block.idle for block in blocks) / duration if duration else 0.0


def time_after_lead(
    launcher: Launcher, others: Sequence[int], lead: Callable[[], object], work: Callable[[], _T]
) -> tuple[_T, Busy]:
    """Do the `work` of one block, and watch the processes of all `others` meanwhile.

    An untimed `lead` runs first. It outlasts what the contender before has left behind: caches, clocks, and threads
    that still spin (those of LLVM's and Intel's OpenMP spin for 0.2 s). It runs again until the others are quiet, for
    one second at most.
    """

    def watch(action: Callable[[], _T]) -> tuple[_T, Busy]:
        before, start = cpu.sum_seconds(others), launcher.now()
        value = action()
        end = launcher.now()
        return value, Busy((start, end), max(0.0, cpu.sum_seconds(others) - before))

    def lead_in() -> bool:
        before, start = cpu.sum_seconds(others), launcher.now()
        lead()
        end = launcher.now()
        return count_idle_cores([Busy((start, end), max(0.0, cpu.sum_seconds(others) - before))]) > FOREIGN_CORES

    start = launcher.now()
    while lead_in() and launcher.now() - start < MOST_LEAD_SECONDS:
        pass
    return watch(work)
