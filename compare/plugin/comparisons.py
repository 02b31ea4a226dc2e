"""The comparisons of one pytest session: each is made once, one at a time, whichever tests and processes ask for it."""

import fcntl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compare.plugin.comparison_request import Asked
from compare.plugin.result import Result


class Comparisons:
    """Makes comparisons and keeps them.

    Arguments:
        folder: where results lie, for this session alone, shared by all of its processes (pytest-xdist).
        report: below it results and reports are written for a reader (None: nowhere).
        command: recorded in the results.
        lines: gets what the terminal, of `width` columns, is to say of the comparisons that this process makes.
    """

    def __init__(
        self, *, folder: Path, report: Path | None, command: Sequence[str], lines: list[str], width: int
    ) -> None:
        self._folder, self._report, self._command, self._lines, self._width = folder, report, command, lines, width
        self._found: dict[str, Result] = {}

    def result(self, asked: Asked) -> Result:
        """Return a comparison's result, which is made now where this session has not made it yet.

        Raises:
            Refused: for what cannot be compared, before any process starts.
        """
        if asked.key not in self._found:
            with self._alone():
                self._found[asked.key] = self._stored(asked) or self._made(asked)
        return self._found[asked.key]

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Let no other process of this session compare anything: two comparisons at once would spoil each other."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # ends with the file, or with the process
            yield

    def _stored(self, asked: Asked) -> Result | None:
        from compare.results import result_file

        path = self._folder / asked.slug / result_file.FILE_NAME
        return Result(result_file.load(path), path) if path.exists() else None

    def _made(self, asked: Asked) -> Result:
        from compare.execution import execute
        from compare.plugin import reports

        result, path = execute.execute(asked.plan(self._folder / asked.slug), self._command)
        self._lines += [*([""] if self._lines else []), *reports.lines(result, self._width)]
        if self._report:
            path = reports.write(result, self._report / asked.slug)
            self._lines.append(f"result file: {path}")
        return Result(result, path)
