"""Wait until other programs leave the cores alone, for a bounded time in a run."""

import math
import os
import time
from collections.abc import Callable

from compare.execution import round_validity
from compare.execution.launcher import Launcher
from compare.machine import cpu
from compare.settings.plan import Plan

LONGEST_SECONDS = 60.0
"""Seconds that a run waits in all. Programs that are busy for longer will not end soon."""

_POLL_SECONDS = 1.0
_LOOK_SECONDS = 0.25


def describe_load(plan: Plan) -> str | None:
    """Say which program keeps cores busy before a run on the CPU starts, or return None if the machine is quiet."""
    limit = round_validity.find_limit(plan)
    if plan.device != "cpu" or limit == math.inf:
        return None
    programs, before = cpu.read_programs(), cpu.read(())
    time.sleep(_LOOK_SECONDS)
    cores = cpu.count_foreign_cores(before, cpu.read(()))
    if cores <= limit:
        return None
    who = cpu.name_busiest(programs, cpu.read_programs(), {os.getpid()}) or "another program"
    return f"{who} works, {cores:.1f} cores are busy: rounds beside it may be void. Stop it, or raise --void-limit"


class Patience:
    """The seconds that a run still waits for quiet.

    Args:
        launcher: knows the processes of the run.
        say: takes a sentence that says what the run waits for.
    """

    def __init__(self, launcher: Launcher, say: Callable[[str], None]) -> None:
        self._launcher, self._say, self.left = launcher, say, LONGEST_SECONDS
        self._limit = round_validity.find_limit(launcher.plan)

    def wait(self) -> None:
        """Wait until other programs keep few cores busy, or until no patience is left. Name the busiest of them."""
        while self.left > 0:
            own = self._launcher.list_processes()
            programs, before = cpu.read_programs(), cpu.read(own)
            time.sleep(_POLL_SECONDS)
            self.left -= _POLL_SECONDS
            cores = cpu.count_foreign_cores(before, cpu.read(own))
            if cores <= self._limit:
                return
            who = cpu.name_busiest(programs, cpu.read_programs(), own) or "another program"
            self._say(f"waiting for quiet: {who} works, {cores:.1f} cores are busy")
