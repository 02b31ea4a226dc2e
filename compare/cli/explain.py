"""`samestep explain`."""

import json
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from compare.base.interface import ContenderFailed, Refused
from compare.cli.command_line import takes_options
from compare.cli.prepared_run import Prepared
from compare.cluster.cluster import Cluster
from compare.execution import execute, explanation
from compare.report import terminal
from compare.results import model, result_file
from compare.results.explanation import Finding
from compare.results.model import Result
from compare.settings import plan
from compare.settings.options import HOW, Settings
from compare.settings.plan import Plan

_ROUNDS = 3


@takes_options("explain")
def explain(
    settings: Settings,
    as_json: bool,
    try_findings: Annotated[
        bool, typer.Option("--try", help="Run what the findings suggest, with a certificate.", rich_help_panel=HOW)
    ] = False,
    cluster: Cluster | None = None,
) -> Prepared:
    """Show why one contender is slower: where a step goes in each, by class of work and by layer.

    Write DIR/result.json and timeline.json, which ui.perfetto.dev shows. It times 3 rounds, and no energy.
    """
    settings = replace(settings, explain=True, energy=False, cold_compile=False, rounds=settings.rounds or _ROUNDS)
    chosen = plan.make(settings, cluster=cluster)

    def show(result: Result, path: Path) -> None:
        if try_findings:
            result = _try_all(result, path, settings, chosen)
        if as_json:
            typer.echo(json.dumps(model.to_json(result), indent=2, allow_nan=False))
            return
        terminal.render(result, Console(), brief=True)
        typer.echo(f"\nresult file: {path}")
        if (timeline := path.parent / explanation.TIMELINE).exists():
            typer.echo(f"time line: {timeline} (open it in ui.perfetto.dev)")

    return Prepared(chosen, show)


def _try_all(result: Result, path: Path, settings: Settings, chosen: Plan) -> Result:
    """Return the result with the measured gain of every finding that has a knob, and write it again.

    All suggestions run beside the contenders that they change, in the same rounds.
    """
    found = result.explanation
    if found is None:
        return result
    texts = {own.name: f"{own.backend}:{own.tuning}" for own in chosen.contenders}
    asked = {(each.contender, each.knob) for each in found.findings if each.knob is not None}
    refused = dict[str, str]()
    for contender, knob in sorted(asked):
        text = f"{texts[contender]}+{knob}"
        try:
            _plan([texts[contender], text], settings, chosen)
        except (Refused, ContenderFailed) as error:
            refused[text] = str(error)
    running = [text for name in texts.values() for text in (name, *_list_changed(name, asked, texts, refused))]
    if len(running) == len(texts):
        return _keep(result, path, [_note(each, texts, refused, {}) for each in found.findings])
    trial = _plan(running, settings, chosen)
    tried, _ = execute.execute(trial, ["samestep", *sys.argv[1:]], part="suggestions: ")
    measured = {text: _measure(tried, index) for index, text in enumerate(running)}
    return _keep(result, path, [_note(each, texts, refused, measured) for each in found.findings])


def _list_changed(
    name: str, asked: set[tuple[str, str]], texts: Mapping[str, str], refused: Container[str]
) -> list[str]:
    """Return the contenders that change one knob of the contender `name`."""
    changed = [f"{name}+{knob}" for contender, knob in sorted(asked) if texts[contender] == name]
    return [text for text in changed if text not in refused]


def _plan(contenders: Sequence[str], settings: Settings, chosen: Plan) -> Plan:
    alone = replace(settings, explain=False, out=chosen.out / "try", tuning=None, knobs=None, parallel=None)
    return plan.make(replace(alone, contenders=list(contenders)), dataset=chosen.dataset)


def _keep(result: Result, path: Path, findings: Sequence[Finding]) -> Result:
    assert result.explanation is not None
    result = replace(result, explanation=replace(result.explanation, findings=tuple(findings)))
    result_file.write_or_spare(result, path.parent)
    return result


def _note(
    finding: Finding,
    texts: Mapping[str, str],
    refused: Mapping[str, str],
    measured: Mapping[str, tuple[float | None, str]],
) -> Finding:
    """Return a finding with the change of the step that its knob brings, or with the reason why it has none."""
    if finding.knob is None:
        return finding
    own = texts[finding.contender]
    text = f"{own}+{finding.knob}"
    if text in refused:
        return replace(finding, measured_reason=refused[text])
    (before, reason), (after, other) = measured[own], measured[text]
    if before is None or after is None:
        return replace(finding, measured_reason=reason or other)
    return replace(finding, measured_milliseconds=1e3 * (after - before))


def _measure(tried: Result, index: int) -> tuple[float | None, str]:
    """Return the seconds of a contender's step, or None and the reason."""
    contender = tried.contenders[index]
    comparison = next((each for each in tried.comparisons if each.contender == contender.name), None)
    if comparison is not None and comparison.verdict == "INVALID":
        return None, comparison.reason or "its times must not be compared"
    step = contender.step_seconds
    if step is None or step.estimate is None:
        return None, contender.reason or "it was not timed"
    return step.estimate, ""
