"""Run a samestep command and print on standard error when its children and judges worked.

    python -m benchmarks.timeline compare torch:stock jax:stock --rounds 2

A line has the begin, the end and the duration in seconds, then the child's process id, its contender and its command.
Timed blocks are left out. Phases have lines of their own. A command that a child did ahead begins when the parent asks
for it, and the line before has the commands that were sent ahead.
"""

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from compare.base import commands
from compare.base.commands import Command, Greeting
from compare.base.interface import ContenderFailed
from compare.cli import app
from compare.execution import judge_certificates
from compare.execution.child import Child
from compare.execution.progress import PhaseClock

SHOWN = ("precision", "batch_size", "perturbations", "steps")
START = time.monotonic()


def main() -> None:
    judged = judge_certificates._judge

    def watched_judged(launcher: Any, outcomes: Any, sides: Any, *rest: Any) -> Any:
        with timed(f"judge {sides[1].contender.name}"):
            return judged(launcher, outcomes, sides, *rest)

    enter = PhaseClock.enter

    def watched_phase(clock: PhaseClock, phase: str) -> None:
        say(time.monotonic(), f"phase {phase}")
        enter(clock, phase)

    with (
        mock.patch.object(judge_certificates, "_judge", watched_judged),
        mock.patch("compare.execution.launcher.Child", Watched),
        mock.patch.object(PhaseClock, "enter", watched_phase),
    ):
        app.main()


class Watched(Child):
    """A child that prints a line for each command."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._began, self._command, self._is_up = time.monotonic(), "", False

    def greet(self, seconds: float | None = None) -> Greeting:
        answer = super().greet(seconds)
        if not self._is_up:
            say(self._began, f"{self.pid} {self.name}: start")
        self._is_up = True
        return answer

    def send_ahead(self, commands: Sequence[Command[Any]]) -> None:
        say(time.monotonic(), f"{self.pid} {self.name}: ahead: {', '.join(command.name for command in commands)}")
        super().send_ahead(commands)

    def close(self) -> None:
        began = time.monotonic()
        super().close()
        say(began, f"{self.pid} {self.name}: end")

    def send(self, command: Command[Any]) -> None:
        arguments = commands.list_arguments(command)
        values = {**(vars(arguments["spec"]) if "spec" in arguments else {}), **arguments}
        self._began = time.monotonic()
        self._command = " ".join([command.name, *(f"{k} {values[k]}" for k in SHOWN if k in values)])
        super().send(command)

    def reply(self, command: Command[Any], seconds: float | None = None) -> Any:
        failed = ""
        try:
            return super().reply(command, seconds)
        except ContenderFailed as failure:
            failed = f": {failure}"
            raise
        finally:
            if failed or not self._command.startswith("block "):
                say(self._began, f"{self.pid} {self.name}: {self._command}{failed}")


@contextmanager
def timed(what: str) -> Generator[None]:
    began = time.monotonic()
    yield
    say(began, what)


def say(began: float, what: str) -> None:
    now = time.monotonic()
    sys.stderr.write(f"{began - START:7.1f} {now - START:7.1f} {now - began:6.1f} s  {what}\n")


if __name__ == "__main__":
    main()
