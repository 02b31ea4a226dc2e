"""Results from elsewhere: whatever was changed in them, they are refused or reported truly, and nothing runs."""

import csv as reader
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from rich.console import Console

from compare.base.interface import Refused
from compare.report import certificate_text, matrix, telemetry_text, terminal
from compare.report.formats import csv, html, latex, markdown
from compare.report.sentences import describe_comparison, make_plain
from compare.results import consistency, result_file
from tests.unit import markup, mutations, stored
from tests.unit.result_factory import make_watched, typed

RESULTS = {name: stored.result(name) for name in stored.NAMES} | {"watched": make_watched(voided=(3,))}
CHANGED = strategies.sampled_from(sorted(RESULTS)).flatmap(lambda name: mutations.changed(RESULTS[name]))
SETTINGS = settings(
    deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def _loaded(data: bytes) -> dict[str, Any] | None:
    """Return what `load` gives for a file with these bytes, None where it refuses them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        path.write_bytes(data)
        try:
            found = result_file.load(path)
            consistency.check_verdicts(typed(found))
            return found
        except Refused:
            return None


@pytest.mark.slow
@settings(SETTINGS, max_examples=75)
@given(CHANGED)
def test_a_changed_result_is_refused_or_told_truly(changed: dict[str, Any]) -> None:
    result = _loaded(json.dumps(changed).encode())
    if result is None:
        return
    report = matrix.report(list(map(typed, [result, result])))
    told = [make_plain(describe_comparison(comparison)) for comparison in typed(result).comparisons]
    if disturbance := telemetry_text.describe_disturbance(typed(result)):
        told = [text for text in told if "INCONCLUSIVE" not in text] + [make_plain(disturbance)]
    words = markup.check_markdown(markdown.render(report, {}))
    tables = markup.check_latex(latex.render(report, {}))
    rows = list(reader.DictReader(io.StringIO(csv.render([typed(result)]))))
    stream = io.StringIO()
    console = Console(file=stream, width=10_000)
    terminal.render(typed(result), console)
    certificate_text.render(typed(result), console, verbose=True)
    for text in told:
        assert text in words
        assert text in stream.getvalue()
    assert "samestep-matrix-matrix" in tables
    samples = [each["step_seconds"]["samples"] for each in result["contenders"] if each["step_seconds"]]
    assert [float(row["seconds_per_step"]) for row in rows] == [s for rounds in samples for r in rounds for s in r]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.slow
@settings(SETTINGS, max_examples=30)
@given(CHANGED)
def test_nothing_of_a_changed_result_runs_on_its_page(changed: dict[str, Any]) -> None:
    result = _loaded(json.dumps(changed).encode())
    if result is None:
        return
    page = markup.check_page(html.render(matrix.report([typed(result)])))
    assert make_plain(matrix.report([typed(result)]).claim) in page.text
    for contender in result["contenders"]:
        assert make_plain(contender["name"]) in page.text


@pytest.mark.slow
@settings(SETTINGS, max_examples=75)
@given(strategies.sampled_from(sorted(RESULTS)).flatmap(lambda name: mutations.damaged(RESULTS[name])))
def test_a_damaged_file_is_refused_or_valid(data: bytes) -> None:
    result = _loaded(data)
    if result is not None:
        result_file.validate(result)
        markup.check_latex(latex.render(matrix.report([typed(result)]), {}))
