"""The comparisons of one pytest session. Each runs once and alone, whichever tests and processes ask for it."""

import fcntl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compare.plugin.comparison_request import ComparisonRequest
from compare.plugin.result import Result


class Comparisons:
    """Runs comparisons and keeps their results.

    Arguments:
        folder: for the results of this session; all of its processes share it (pytest-xdist).
        report: folder for results and reports that a reader gets; None for no such reports.
        command: recorded in the results.
        lines: the list that gets the brief reports, for a terminal of `width` columns.
    """

    def __init__(
        self, *, folder: Path, report: Path | None, command: Sequence[str], lines: list[str], width: int
    ) -> None:
        self._folder, self._report, self._command, self._lines, self._width = folder, report, command, lines, width
        self._results: dict[str, Result] = {}

    def result(self, request: ComparisonRequest) -> Result:
        """Return a comparison's result. Run the comparison unless this session has run it before.

        Raises:
            Refused: for settings that are not allowed, before any process starts.
        """
        if request.key not in self._results:
            with self._hold_lock():
                self._results[request.key] = self._load(request) or self._run(request)
        return self._results[request.key]

    @contextmanager
    def _hold_lock(self) -> Generator[None]:
        """Keep other processes of this session from comparing. Two comparisons at once would disturb each other."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # ends with the file, or with the process
            yield

    def _load(self, request: ComparisonRequest) -> Result | None:
        from compare.results import result_file

        path = self._folder / request.slug / result_file.FILE_NAME
        return Result(result_file.read(path), path) if path.exists() else None

    def _run(self, request: ComparisonRequest) -> Result:
        from compare.execution import execute
        from compare.plugin import reports

        result, path = execute.execute(request.make_plan(self._folder / request.slug), self._command)
        self._lines += [*([""] if self._lines else []), *reports.render_lines(result, self._width)]
        if self._report:
            path = reports.write(result, self._report / request.slug)
            self._lines.append(f"result file: {path}")
        return Result(result, path)
