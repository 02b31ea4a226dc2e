"""`samestep explain`."""

import json
import sys
from collections.abc import Sequence
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
from compare.settings.contenders import Contender
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
    if found is None or not any(each.knob for each in found.findings):
        typer.echo("samestep: --try: no finding names a knob, so nothing was tried", err=True)
        return result
    owns = {own.name: own for own in chosen.contenders}
    texts = {name: f"{own.backend}:{own.tuning}" for name, own in owns.items()}
    changed = {
        (each.contender, each.knob): _change(owns[each.contender], each.knob) for each in found.findings if each.knob
    }
    refused, running = dict[str, str](), list(texts.values())
    for (contender, _), text in sorted(changed.items()):
        try:
            _plan([texts[contender], text], settings, chosen)
            running.append(text)
        except (Refused, ContenderFailed) as error:
            refused[text] = str(error)
    measured = dict[str, tuple[float | None, str]]()
    if len(running) > len(texts):
        tried, _ = execute.execute(_plan(running, settings, chosen), ["samestep", *sys.argv[1:]], part="suggestions: ")
        measured = {text: _measure(tried, index) for index, text in enumerate(running)}

    def note(finding: Finding) -> Finding:
        text = changed.get((finding.contender, finding.knob or ""))
        if text is None:
            return finding
        if text in refused:
            return replace(finding, measured_reason=refused[text])
        (before, reason), (after, other) = measured[texts[finding.contender]], measured[text]
        if before is None or after is None:
            return replace(finding, measured_reason=reason or other)
        return replace(finding, measured_milliseconds=1e3 * (after - before))

    result = replace(result, explanation=replace(found, findings=tuple(map(note, found.findings))))
    result_file.write_or_spare(result, path.parent)
    return result


def _change(own: Contender, knobs: str) -> str:
    """Return the contender with some knobs changed, in the form that a command takes."""
    changed = {knob.partition("=")[0] for knob in knobs.split("+")}
    kept = [part for part in own.tuning.split("+") if part.partition("=")[0] not in changed]
    return f"{own.backend}:{'+'.join((*kept, knobs))}"


def _plan(contenders: Sequence[str], settings: Settings, chosen: Plan) -> Plan:
    alone = replace(settings, explain=False, out=chosen.out / "try", tuning=None, knobs=None, parallel=None)
    return plan.make(replace(alone, contenders=list(contenders)), dataset=chosen.dataset)


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
