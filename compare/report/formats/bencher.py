"""Write Bencher Metric Format, the JSON of the dashboard Bencher (bencher.dev/bmf.json), with intervals as bounds.

Bencher's own measures `latency` and `throughput` are in nanoseconds and in operations a second.
"""

import json
from collections.abc import Sequence

from compare.report import long_form
from compare.report.formats import Format
from compare.report.sentences import make_plain
from compare.results.model import Result

_MEASURES = {
    long_form.STEP_TIME: ("latency", 1e9),
    long_form.LATENCY: ("latency", 1e9),
    long_form.RATE: ("throughput", 1.0),
}


def render(results: Sequence[Result]) -> str:
    """Return the metrics of results as JSON: benchmark, measure, and value with bounds."""
    metrics = dict[str, dict[str, dict[str, float]]]()
    for figure in long_form.list_figures(results):
        measure, factor = _MEASURES.get(figure.metric, (figure.metric, 1.0))
        metric = {"value": figure.value * factor}
        if figure.low is not None and figure.high is not None:
            metric |= {"lower_value": figure.low * factor, "upper_value": figure.high * factor}
        metrics.setdefault(make_plain(figure.name), {})[measure] = metric
    return json.dumps(metrics, indent=2, allow_nan=False) + "\n"


FORMAT = Format(
    "bencher",
    "Write Bencher's JSON, with intervals as bounds.",
    lambda _, results, __: render(results),
    list_names=long_form.list_names,
)
