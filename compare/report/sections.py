"""What a report of one result says, section by section; a section without data says why."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from compare.report import (
    environment_table,
    fairness,
    gate_rows,
    measurements,
    pair_text,
    telemetry_text,
)
from compare.report.document import Part, Section, Table
from compare.report.plots import loss_plot, memory_plot, ratio_plot, step_plot
from compare.report.plots import telemetry_plot as telemetry_picture
from compare.report.sentences import (
    DASH,
    agreement_lines,
    basis,
    claim,
    heading,
    percent,
    ratio_figures,
    replication,
    sentence,
    setting,
    source,
)

Result = Mapping[str, Any]

_AGREES = {
    "pass": "{} agrees with {}",
    "fail": "{} does not agree with {}",
    "skipped": "it is not known whether {} agrees with {}",
}


def part(result: Result) -> Part:
    """Return all that a report says of a valid result."""
    said = verdict(result)
    claims = [claim(each) for each in result["comparisons"]]
    return Part(
        claim=claims[0] if len(claims) == 1 and said.startswith(f"{claims[0]} (") else said,
        verdict=said,
        setting=setting(result),
        heading=heading(result),
        source=source(result, replication(result)),
        sections=tuple(
            make(result)
            for make in (
                *(_ratio, _measured, _steps, _memory, _loss, _certificate),
                *([_pair] if "pair" in result["spec"] else []),
                *(_fairness, _telemetry, _environment),
            )
        ),
    )


def verdict(result: Result) -> str:
    """Return in one sentence what a result says: its comparison, all its comparisons, or else its agreement."""
    comparisons = result["comparisons"]
    if len(comparisons) == 1:
        return sentence(comparisons[0])
    if comparisons:
        return "; ".join(f"{claim(each)} ({each['verdict']})" for each in comparisons)
    agreement = result["agreement"]
    found = [_AGREES[each["status"]].format(each["contender"], each["baseline"]) for each in agreement["pairs"]]
    if not found:
        return f"{agreement_lines(agreement)[0]}; nothing was timed"
    return f"{', '.join(found)} in {agreement['precision']}; nothing was timed"


def _ratio(result: Result) -> Section:
    comparisons = result["comparisons"]
    rows = [_ratio_row(each) for each in comparisons]
    columns = ("contender", "baseline", "ratio", "interval", "rounds", "verdict", "detectable")
    caption = "Step time of each contender over its baseline's; below 1 is faster."
    return Section(
        "ratio",
        "Ratio of step times",
        [f"{sentence(each)}." for each in comparisons] if len(comparisons) > 1 else (),
        picture=ratio_plot.picture([result]),
        tables=[Table("ratios", caption, columns, rows, basis([result]))] if rows else (),
    )


def _ratio_row(comparison: Result) -> tuple[str, ...]:
    ratio, seen = comparison["ratio"], comparison["detectable"]
    estimate, interval = DASH, DASH
    if ratio is not None and comparison["verdict"] != "INVALID":
        estimate, low, high = ratio_figures(ratio)
        interval = f"{low} to {high}"
    return (
        comparison["contender"],
        comparison["baseline"],
        estimate,
        interval,
        str(comparison["rounds"]),
        comparison["verdict"],
        DASH if seen is None or estimate == DASH else percent(seen),
    )


def _measured(result: Result) -> Section:
    contenders = result["contenders"]
    figures = measurements.rows(contenders, result["spec"])
    rows = [(label.strip(), *cells) for label, cells in figures]
    nested = frozenset(index for index, (label, _) in enumerate(figures) if label.startswith(" "))
    columns = ("", *(each["name"] for each in contenders))
    lines = [*measurements.remarks(contenders), *measurements.step_definition(contenders)]
    if not rows:
        lines.append("No figure was measured.")
    table = Table("figures", "Times, throughput, memory and training.", columns, rows, basis([result]), nested=nested)
    return Section("measured", "Measured", lines, tables=[table] if rows else ())


def _steps(result: Result) -> Section:
    return Section("steps", "Step times by round", picture=step_plot.picture(result))


def _memory(result: Result) -> Section:
    lines = list(measurements.absent_memory(result["contenders"]))
    return Section("memory", "Memory by definition", lines, picture=memory_plot.picture(result))


def _loss(result: Result) -> Section:
    return Section("loss", "Loss curves", picture=loss_plot.picture(result))


def _certificate(result: Result) -> Section:
    agreement = result["agreement"]
    reason = f" ({agreement['reason']})" if agreement["reason"] else ""
    lines = [f"Agreement in {agreement['precision']}: {agreement['status']}{reason}."]
    if not agreement["pairs"]:
        lines.append("There is no certificate.")
    for each in agreement["pairs"]:
        if each["first_mismatch"]:
            lines.append(f"{each['contender']} against {each['baseline']}: first mismatch {each['first_mismatch']}")
    lines += [note for each in agreement["pairs"] for note in each.get("notes", ())]
    tables = [
        table
        for number, each in enumerate(agreement["pairs"], 1)
        for table in _certificate_tables(result, each, number)
    ]
    return Section("certificate", "Certificate", lines, tables=tables)


def _certificate_tables(result: Result, made: Result, number: int) -> Iterator[Table]:
    names = f"{made['contender']} against {made['baseline']}"
    rows = [(*row, gate_rows.MEANINGS.get(row[0], DASH)) for row in gate_rows.gate_rows(made)]
    failed = frozenset(index for index, gate in enumerate(made["gates"]) if not gate["passed"])
    caption = f"Certificate of {names}: {made['status']}. Every gate at its worst over all recorded tensors and steps."
    columns = (*(head or "outcome" for head in gate_rows.GATE_COLUMNS), "what it asks")
    yield Table(f"gates-{number}", caption, columns, rows, f"Setting: {setting(result)}.", failed, prose=True)
    if tensors := gate_rows.tensor_rows(made):
        caption = f"Every tensor of {names} in execution order: relative errors."
        yield Table(f"tensors-{number}", caption, gate_rows.TENSOR_COLUMNS, tensors, detail=True)


def _pair(result: Result) -> Section:
    table = pair_text.table(result)
    return Section(
        "pair", "The pair", [f"{line}." for line in pair_text.lines(result)], tables=[table] if table else ()
    )


def _fairness(result: Result) -> Section:
    table = fairness.table(result)
    lines = [] if table else ["No contender came far enough to have its settings read back."]
    return Section("fairness", "Fairness: effective settings", lines, tables=[table] if table else ())


def _telemetry(result: Result) -> Section:
    lines = [*telemetry_text.lines(result), *telemetry_text.voids(result)]
    return Section("telemetry", "Telemetry", lines, picture=telemetry_picture.picture(result))


def _environment(result: Result) -> Section:
    command = shlex.join(result["command"])
    return Section("environment", "Environment and command", command=command, tables=environment_table.tables(result))
