"""Print the report of `samestep diff`: every figure before and after, and whether the gate holds."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from compare.base.errors import make_printable
from compare.report import columns
from compare.report.measurements import time_unit
from compare.report.sentences import format_percent
from compare.reproduce.regression import INCONCLUSIVE, REGRESSION, Change, is_time

_MEBIBYTE = 2**20


def render(changes: Sequence[Change], threshold: float, remarks: Sequence[str], console: Console) -> None:
    """Print a table of changes, their reasons, the remarks, and last the sentence that the exit code stands for."""
    rows = [(*_figure_cells(each), *_ratio_cells(each), each.outcome or "not judged") for each in changes]
    columns.show(("", "old", "new", "change", "interval", ""), rows, console, prose=(0, 1, 2), right=(1, 2, 3, 4))
    console.print()
    for line in (*_reasons(changes), *remarks, _conclusion(changes, threshold)):
        console.print(Text(make_printable(line)))


def _conclusion(changes: Sequence[Change], threshold: float) -> str:
    failed = [_label(change) for change in changes if change.outcome == REGRESSION]
    undecided = [_label(change) for change in changes if change.outcome == INCONCLUSIVE]
    text = f"regression above {format_percent(threshold)}: {', '.join(failed)}" if failed else ""
    text = text or f"no regression above {format_percent(threshold)}"
    return f"{text}; undecided: {', '.join(undecided)}" if undecided else text


def _figure_cells(change: Change) -> tuple[str, str, str]:
    sides = change.before, change.after
    numbers = [side for side in sides if not isinstance(side, str)]
    if not numbers:
        return _label(change), str(change.before), str(change.after)
    scale, unit = time_unit(numbers) if is_time(change.figure) else (_MEBIBYTE, "MiB")
    form = ",.4g" if is_time(change.figure) else ",.1f"
    before, after = (side if isinstance(side, str) else format(side / scale, form) for side in sides)
    return f"{_label(change)} ({unit})", before, after


def _ratio_cells(change: Change) -> tuple[str, str]:
    if change.ratio is None:
        return "", ""
    estimate, low, high = (
        f"{100 * (value - 1):+z,.1f}" for value in (change.ratio.estimate, change.ratio.low, change.ratio.high)
    )
    return f"{estimate} %", "" if change.ratio.low == change.ratio.high else f"{low} to {high} %"


def _reasons(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        if change.reason:
            yield f"{_label(change)}: {change.reason}"


def _label(change: Change) -> str:
    return f"{change.contender} {change.figure.removesuffix('_bytes').replace('_', ' ')}".strip()
