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
    """Return the result with the measured gain of every finding that has a knob, and write it again."""
    found = result.explanation
    if found is None:
        return result
    tried: dict[tuple[str, str], Finding] = {}
    for finding in found.findings:
        if finding.knob is not None and (finding.contender, finding.knob) not in tried:
            tried[finding.contender, finding.knob] = _try(finding, finding.knob, settings, chosen, len(tried) + 1)
    measured = tuple(tried.get((each.contender, each.knob or ""), each) for each in found.findings)
    measured = tuple(
        replace(
            each,
            measured_milliseconds=known.measured_milliseconds,
            measured_reason=known.measured_reason,
        )
        for each, known in zip(found.findings, measured, strict=True)
    )
    result = replace(result, explanation=replace(found, findings=measured))
    result_file.write_or_spare(result, path.parent)
    return result


def _try(finding: Finding, knob: str, settings: Settings, chosen: Plan, number: int) -> Finding:
    """Return a finding with the change of the step that its knob brings, or with the reason why it has none."""
    own = next(contender for contender in chosen.contenders if contender.name == finding.contender)
    texts = [f"{own.backend}:{own.tuning}", f"{own.backend}:{own.tuning}+{knob}"]
    out = chosen.out / f"try-{number}"
    try:
        trial = plan.make(
            replace(settings, contenders=texts, explain=False, out=out, tuning=None, knobs=None, parallel=None),
            dataset=chosen.dataset,
        )
        tried, _ = execute.execute(trial, ["samestep", *sys.argv[1:]], part=f"{texts[1]}: ")
    except (Refused, ContenderFailed) as error:
        return replace(finding, measured_reason=str(error))
    return _measure(finding, tried)


def _measure(finding: Finding, tried: Result) -> Finding:
    reason = "; ".join(filter(None, (contender.reason for contender in tried.contenders)))
    comparison = next(iter(tried.comparisons), None)
    before, after = (_estimate(tried, index) for index in (0, 1))
    if comparison is None or comparison.verdict == "INVALID" or before is None or after is None:
        why = (comparison.reason if comparison else None) or reason or "it was not timed"
        return replace(finding, measured_reason=why)
    return replace(finding, measured_milliseconds=1e3 * (after - before))


def _estimate(result: Result, index: int) -> float | None:
    times: Sequence[model.StepTimes | None] = [contender.step_seconds for contender in result.contenders]
    step = times[index] if index < len(times) else None
    return None if step is None else step.estimate
