"""Every timed block of one or several results as one tidy table: a row a block, in the order in which it was timed.

Columns: what was run (`result` to `device`), the block (`contender` to `seconds_per_step`), whether its round counts
(`void`, 0 or 1, with `void_reason`), and the contender's comparison with its baseline, the same in each of its rows
(`baseline` to `winner`; empty for a baseline). For INVALID there is no ratio. Rounds and blocks count from 1.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compare.report.matrix import winner
from compare.report.sentences import plain

COLUMNS = (
    *("result", "created", "workload", "precision", "batch_size", "device"),
    *("contender", "round", "block", "steps", "seconds_per_step", "void", "void_reason"),
    *("baseline", "ratio", "ratio_low", "ratio_high", "confidence", "verdict", "winner"),
)
_FORMULA = tuple("=+-@")


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table as CSV (RFC 4180, lines ended by a line feed).

    Text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        writer.writerows([_safe(cell) for cell in row] for row in _rows(result))
    return stream.getvalue()


def _rows(result: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    spec = result["spec"]
    run = result["id"], result["created"], spec["workload"], spec["precision"], spec["batch_size"], spec["device"]
    void = {each["round"]: each["reason"] for each in result["voided"]}
    comparisons = {each["contender"]: _comparison(each) for each in result["comparisons"]}
    for contender in result["contenders"]:
        name, step = contender["name"], contender["step_seconds"]
        samples: Sequence[Sequence[float]] = step["samples"] if step else ()
        for number, blocks in enumerate(samples, start=1):
            for block, seconds in enumerate(blocks, start=1):
                timed = name, number, block, step["steps_per_block"], seconds
                counts = int(number in void), void.get(number, "")
                yield *run, *timed, *counts, *comparisons.get(name, ("",) * 7)


def _comparison(comparison: Mapping[str, Any]) -> tuple[Any, ...]:
    ratio = comparison["ratio"] if comparison["verdict"] != "INVALID" else None
    figures = (ratio["estimate"], ratio["low"], ratio["high"], ratio["confidence"]) if ratio else ("",) * 4
    return comparison["baseline"], *figures, comparison["verdict"], winner(comparison)


def _safe(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    cell = plain(cell)
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
