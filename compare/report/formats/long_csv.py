"""Write CSV in long form: a row for each figure of each contender, for data frames."""

import csv
import io
from collections.abc import Sequence

from compare.report import long_form
from compare.report.formats import Format
from compare.report.formats.csv import Cell, escape
from compare.results.model import Result

COLUMNS = (
    *("result", "created", "samestep", "workload", "task", "precision", "batch_size", "device", "device_name"),
    *("contender", "baseline", "verdict", "metric", "unit", "value", "low", "high", "confidence", "prune"),
)


def make_rows(results: Sequence[Result]) -> list[tuple[Cell | None, ...]]:
    """Return the values of `COLUMNS` for each figure. None stands for a missing value."""
    rows = list[tuple[Cell | None, ...]]()
    for figure in long_form.list_figures(results):
        result, comparison = figure.row.result, figure.row.comparison
        spec = result.spec
        batch = spec.batch_size if figure.row.batch_size is None else figure.row.batch_size
        rows.append(
            (
                *(result.id, result.created, result.environment.samestep),
                *(spec.workload, spec.task, spec.precision, batch, spec.device, result.device_name),
                figure.row.contender.name,
                comparison.baseline if comparison else None,
                comparison.verdict if comparison else None,
                *(figure.metric, figure.unit, figure.value, figure.low, figure.high, figure.confidence, spec.prune),
            )
        )
    return rows


def render(results: Sequence[Result]) -> str:
    """Return the rows as CSV (RFC 4180, with line feeds). A missing value is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(["" if cell is None else escape(cell) for cell in row] for row in make_rows(results))
    return stream.getvalue()


FORMAT = Format("long-csv", "Write a row for each figure, for data frames.", lambda _, results, __: render(results))
