"""A comparison's report as text: brief at the end of a pytest session, full beside the result file."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from compare.report import terminal
from compare.results import result_file
from compare.results.model import Result

_WIDTH = 100


def render_lines(result: Result, width: int) -> list[str]:
    """Return the lines of the brief report, none longer than `width`."""
    return _text(result, width, brief=True).splitlines()


def write(result: Result, folder: Path) -> Path:
    """Write the result file and the full report, `report.txt`, to a folder. Return the result file's path."""
    path = result_file.write(result, folder)
    (folder / "report.txt").write_text(_text(result, _WIDTH, brief=False), encoding="utf-8")
    return path


def _text(result: Result, width: int, *, brief: bool) -> str:
    stream = StringIO()
    console = Console(file=stream, width=width, color_system=None, force_terminal=False)
    terminal.render(result, console, brief=brief)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())
