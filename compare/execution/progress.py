"""Show progress on standard error. It is written only on a call, so nothing runs while a block is timed."""

from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compare.execution.launcher import Progress as Callback

_LINE_SECONDS = 60.0
"""A log gets at most one line a minute, when a part of the run ends."""


@contextmanager
def show(part: str = "") -> Generator[Callback]:
    """Yield a progress callback for the `with` block: a bar on a terminal, or else at most a line a minute.

    `part` comes before the name of each phase.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console, part)
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=1)

        def advance(phase: str, done: int, total: int) -> None:
            bar.update(task, description=f"{part}{phase}", completed=done, total=total, refresh=True)

        yield advance


def _lines(console: Console, part: str) -> Callback:
    start = last = monotonic()

    def advance(phase: str, done: int, total: int) -> None:
        nonlocal last
        now = monotonic()
        if now >= last + _LINE_SECONDS:
            last = now
            minutes, seconds = divmod(int(now - start), 60)
            console.print(f"{minutes:3}:{seconds:02}  {part}{phase} {done}/{total}", markup=False, highlight=False)

    return advance
