"""The command line run in this process, in an empty folder, with the fake backends at hand."""

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compare.cli import app
from tests.fakebackend import plans


class Program:
    """Runs `samestep` in this process, in an empty folder."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._capfd, self._monkeypatch = folder, capfd, monkeypatch

    def run(self, *arguments: str, main: Callable[[], None] = app.main) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error."""
        self._monkeypatch.setattr(sys, "argv", ["samestep", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out, error = self._capfd.readouterr()
        code = caught.value.code
        return (code if isinstance(code, int) else 0), out, error

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))


@contextmanager
def opened(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    """Give the program for the `with` block, and the signal handlers back to pytest after it."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    logs, here = tmp_path / "logs", tmp_path / "here"
    logs.mkdir()
    here.mkdir()
    plans.register(monkeypatch, logs)
    monkeypatch.chdir(here)
    yield Program(here, capfd, monkeypatch)
    for number, handler in handlers.items():
        signal.signal(number, handler)
