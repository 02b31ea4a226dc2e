"""Progress on standard error: redrawn only when told to, so that nothing moves while a block is timed."""

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compare.launcher import Progress as Callback


@contextmanager
def shown(part: str = "") -> Generator[Callback]:
    """Return a progress callback for the `with` block; it shows nothing where standard error is no terminal.

    `part` is said before each phase.
    """
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("starting", total=1)

        def advance(phase: str, done: int, total: int) -> None:
            bar.update(task, description=f"{part}{phase}", completed=done, total=total, refresh=True)

        yield advance
