"""Write CSV: one row for each timed block or request of one or several results, in the order of timing.

Columns `result` to `device` describe the run. Columns `contender` to `seconds_per_step` describe the block. `void` is 1
for a void round, else 0, and `void_reason` says why. Columns `baseline` to `winner` hold the contender's comparison.
They are the same in all its rows, and empty for a baseline. INVALID has no ratio. Rounds and blocks count from 1.
"""

import csv
import io
from collections.abc import Iterator, Sequence

from compare.report.formats import Format
from compare.report.sentences import make_plain, name_winner
from compare.results.model import Comparison, Result

COLUMNS = (
    *("result", "created", "workload", "precision", "batch_size", "device"),
    *("contender", "round", "block", "steps", "seconds_per_step", "void", "void_reason"),
    *("baseline", "ratio", "ratio_low", "ratio_high", "confidence", "verdict", "winner"),
)
_FORMULA = tuple("=+-@")


Cell = str | int | float


def render(results: Sequence[Result]) -> str:
    """Return the table as CSV (RFC 4180, with line feeds).

    An apostrophe comes before any text that a spreadsheet would take for a formula.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        writer.writerows([escape(cell) for cell in row] for row in _make_rows(result))
    return stream.getvalue()


FORMAT = Format("csv", "Write a row for each timed block.", lambda _, results, __: render(results), is_of_blocks=True)


def _make_rows(result: Result) -> Iterator[tuple[Cell, ...]]:
    spec = result.spec
    void = {voided.round: voided.reason for voided in result.voided}
    comparisons = {(each.contender, each.batch_size): _make_comparison_cells(each) for each in result.comparisons}
    for contender in result.contenders:
        for series in contender.list_series():
            size = spec.batch_size if series.batch_size is None else series.batch_size
            run = result.id, result.created, spec.workload, spec.precision, size, spec.device
            compared = comparisons.get((contender.name, series.batch_size), ("",) * 7)
            for number, blocks in enumerate(series.samples, start=1):
                for block, seconds in enumerate(blocks, start=1):
                    timed = contender.name, number, block, series.steps_per_block, seconds
                    yield *run, *timed, int(number in void), void.get(number, ""), *compared


def _make_comparison_cells(comparison: Comparison) -> tuple[Cell, ...]:
    ratio = comparison.claimed_ratio
    figures = (ratio.estimate, ratio.low, ratio.high, ratio.confidence) if ratio else ("",) * 4
    return comparison.baseline, *figures, comparison.verdict, name_winner(comparison)


def escape(cell: Cell) -> Cell:
    """Return a cell with an apostrophe before a text that a spreadsheet would take for a formula."""
    if not isinstance(cell, str):
        return cell
    cell = make_plain(cell)
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
