"""Write the JSON that github-action-benchmark reads as `customSmallerIsBetter`: times, ratios and memory."""

import json
from collections.abc import Sequence
from typing import Any

from compare.report import long_form
from compare.report.formats import Format
from compare.report.sentences import make_plain
from compare.results.model import Result

_UNITS = {"s": ("ms", 1e3), "B": ("MiB", 2.0**-20), "1": ("x baseline", 1.0)}


def render(results: Sequence[Result]) -> str:
    """Return a list of entries with name, unit, value, and the half width of the interval as range."""
    entries = list[dict[str, Any]]()
    for figure in long_form.list_figures(results):
        if not figure.is_smaller_better:
            continue
        unit, factor = _UNITS[figure.unit]
        entry: dict[str, Any] = {
            "name": make_plain(f"{figure.name} ({figure.metric})"),
            "unit": unit,
            "value": figure.value * factor,
        }
        if figure.low is not None and figure.high is not None:
            entry["range"] = f"± {(figure.high - figure.low) / 2 * factor:.4g}"
        if figure.row.comparison is not None:
            entry["extra"] = make_plain(f"{figure.row.comparison.verdict} against {figure.row.comparison.baseline}")
        entries.append(entry)
    return json.dumps(entries, indent=2, allow_nan=False) + "\n"


FORMAT = Format(
    "github-action",
    "Write the JSON of github-action-benchmark (customSmallerIsBetter).",
    lambda _, results, __: render(results),
    list_names=long_form.list_names,
)
