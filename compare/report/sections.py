"""The sections of a report, in reading order: `SECTIONS`. To add a section, add an entry there.

Pages show every section. The terminal report shows their remarks, claims and definitions.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from compare.machine import known_variables
from compare.report import (
    environment_table,
    explanation_text,
    fairness,
    gate_rows,
    measurements,
    pair_text,
    telemetry_text,
)
from compare.report.document import Content, Part, Section, Table
from compare.report.plots import (
    breakdown_plot,
    loss_plot,
    memory_plot,
    ratio_plot,
    step_plot,
    telemetry_plot,
    throughput_plot,
)
from compare.report.sentences import (
    DASH,
    count_noun,
    describe_agreement,
    describe_basis,
    describe_comparison,
    describe_replication,
    describe_setting,
    describe_source,
    describe_status,
    explain_mismatch,
    format_percent,
    format_ratio_figures,
    make_heading,
    state_claim,
)
from compare.results.model import Comparison, Pair, Result

Lines = Callable[[Result], Iterable[str]]

_AGREES = {
    "pass": "{} agrees with {}",
    "fail": "{} does not agree with {}",
    "skipped": "it is not known whether {} agrees with {}",
}


@dataclass(frozen=True)
class SectionKind:
    """A section of every report.

    Attributes:
        name: unique; it becomes part of anchors and labels.
        title: its heading.
        make: returns the content for a result, None if the report of this result has no such section.
        remarks: lines that the terminal prints below the table of figures.
        claims: lines that it prints next.
        definitions: lines that it prints last.
    """

    name: str
    title: str
    make: Callable[[Result], Content | None]
    remarks: Lines = lambda _: ()
    claims: Lines = lambda _: ()
    definitions: Lines = lambda _: ()


def make_part(result: Result) -> Part:
    """Return the whole report of a result."""
    said = summarise(result)
    claims = [state_claim(comparison) for comparison in result.comparisons]
    contents = [(kind, kind.make(result)) for kind in SECTIONS]
    return Part(
        claim=claims[0] if len(claims) == 1 and said.startswith(f"{claims[0]} (") else said,
        verdict=said,
        setting=describe_setting(result),
        heading=make_heading(result),
        source=describe_source(result.environment, result.created, result.id, describe_replication(result)),
        sections=[Section(name=kind.name, title=kind.title, **vars(content)) for kind, content in contents if content],
    )


def summarise(result: Result) -> str:
    """Return in one sentence what a result says: its comparisons, or else its agreement."""
    comparisons = _list_told(result)
    if result.comparisons:
        said = (
            describe_comparison(comparisons[0])
            if len(comparisons) == 1
            else "; ".join(f"{state_claim(each)} ({each.verdict})" for each in comparisons)
        )
        return ". ".join([*filter(None, [said]), *warn(result)])
    agreement = result.agreement
    said = [_AGREES[pair.status].format(pair.contender, pair.baseline) for pair in agreement.pairs]
    if not said:
        return f"{describe_status(agreement)}; nothing was timed"
    return f"{', '.join(said)} in {agreement.precision}; nothing was timed"


def _list_told(result: Result) -> Sequence[Comparison]:
    """Return the comparisons, without those that the warning of a disturbance has told in full."""
    if not telemetry_text.is_disturbed(result):
        return result.comparisons
    return [each for each in result.comparisons if each.verdict != "INCONCLUSIVE" or each.ratio is not None]


def warn(result: Result) -> list[str]:
    """Return what a reader must know before the figures: disturbances, and variables that may change a time."""
    warnings = [telemetry_text.describe_disturbance(result)]
    recorded = result.environment.variables
    if result.comparisons and (names := list(known_variables.find_unknown(recorded, result.spec.devices))):
        warnings.append(f"These variables are set and may slow one side down: {', '.join(names)}")
    return [warning for warning in warnings if warning]


def _ratio(result: Result) -> Content:
    comparisons = result.comparisons
    has_sizes = result.spec.batch_sizes is not None
    rows = [_ratio_row(comparison) for comparison in comparisons]
    columns = ("contender", "baseline", "ratio", "interval", "rounds", "verdict", "detectable")
    if has_sizes:
        rows = [(row[0], str(each.batch_size), *row[1:]) for row, each in zip(rows, comparisons, strict=True)]
        columns = (columns[0], "batch", *columns[1:])
    caption = (
        f"{'p50 of a request' if has_sizes else 'Step time'} of each contender over its baseline's. Below 1 is faster. "
        "Detectable: the smallest difference that so many rounds would show."
    )
    lines = [f"{describe_comparison(comparison)}." for comparison in comparisons] if len(comparisons) > 1 else []
    return Content(
        lines=[*lines, *_define_ratio(result)],
        picture=ratio_plot.make_picture([result]),
        tables=[Table("ratios", caption, columns, rows, describe_basis([result]))] if rows else (),
    )


def _define_ratio(result: Result) -> Iterator[str]:
    """Yield the definition of the ratio, and of the confidence if the run could stop early."""
    if any(comparison.claimed_ratio for comparison in result.comparisons):
        what = "step time" if result.spec.batch_sizes is None else "p50 of a request"
        yield f"ratio: the contender's {what} divided by the baseline's, so a smaller ratio is faster"
    looks = {int(look): error for look, error in (result.spec.looks or {}).items()}
    level, count = format_percent(result.confidence, 6), result.spec.rounds - len(result.voided)
    if looks and count:
        plan = ", ".join(f"{format_percent(looks[look])} after {look} rounds" for look in sorted(looks))
        limit = result.spec.fail_above
        clear = f"the ratio is clear of the limit of {format_percent(limit)}" if limit is not None else ""
        yield (
            f"{level} interval: timing may stop early, at a look where {clear or 'every verdict is certain'}. "
            f"Each look has its own error ({plan}; together {format_percent(sum(looks.values()))}), so the interval "
            f"after {count_noun(count, 'round')} has {level} confidence"
        )


def _ratio_row(comparison: Comparison) -> tuple[str, ...]:
    ratio, detectable = comparison.claimed_ratio, comparison.detectable
    estimate, interval = DASH, DASH
    if ratio is not None:
        estimate, low, high = format_ratio_figures(ratio)
        interval = f"{low} to {high}"
    return (
        comparison.contender,
        comparison.baseline,
        estimate,
        interval,
        str(comparison.rounds),
        comparison.verdict,
        DASH if detectable is None or ratio is None else format_percent(detectable),
    )


def _measured(result: Result) -> Content:
    contenders = result.contenders
    figures = measurements.make_rows(contenders, result.confidence)
    rows = [(label.strip(), *cells) for label, cells in figures]
    nested = frozenset(index for index, (label, _) in enumerate(figures) if label.startswith(" "))
    columns = ("", *(contender.name for contender in contenders))
    lines = [*measurements.list_remarks(contenders), *measurements.step_definition(contenders)]
    if not rows:
        lines.append("No figure was measured.")
    table = Table(
        "figures", "Times, throughput, memory and training.", columns, rows, describe_basis([result]), nested=nested
    )
    return Content(lines=lines, tables=[table] if rows else ())


def _explanation(result: Result) -> Content | None:
    if result.explanation is None:
        return None
    lines = [f"{line}." for line in explanation_text.lines(result)]
    return Content(lines=lines, picture=breakdown_plot.make_classes(result), tables=explanation_text.tables(result))


def _layers(result: Result) -> Content | None:
    if result.explanation is None:
        return None
    found = (explanation_text.shown_layers(result), explanation_text.layer_table(result))
    return Content(picture=breakdown_plot.make_layers(result), tables=[table for table in found if table])


def _requests(result: Result) -> Content | None:
    return Content(picture=throughput_plot.make_picture(result)) if result.spec.batch_sizes else None


def _memory(result: Result) -> Content:
    return Content(
        lines=list(measurements.explain_absent_memory(result.contenders)), picture=memory_plot.make_picture(result)
    )


def _certificate(result: Result) -> Content:
    agreement = result.agreement
    status = describe_status(agreement)
    lines = [f"{status[:1].upper()}{status[1:]}."]
    if not agreement.pairs:
        lines.append("There is no certificate.")
    for pair in agreement.pairs:
        lines += [f"{pair.contender} against {pair.baseline}: {line.strip()}" for line in explain_mismatch(pair)]
    lines += [note for pair in agreement.pairs for note in pair.notes]
    numbered = enumerate(agreement.pairs, start=1)
    tables = [table for number, pair in numbered for table in _certificate_tables(result, pair, number)]
    return Content(lines=lines, tables=tables)


def _certificate_tables(result: Result, pair: Pair, number: int) -> Iterator[Table]:
    names = f"{pair.contender} against {pair.baseline}"
    rows = [(*row, gate_rows.MEANINGS.get(row[0], DASH)) for row in gate_rows.make_gate_rows(pair)]
    failed = frozenset(index for index, gate in enumerate(pair.gates) if not gate.passed)
    caption = f"Certificate of {names}: {pair.status}. Every gate at its worst over all recorded tensors and steps."
    columns = (*(head or "outcome" for head in gate_rows.GATE_COLUMNS), "meaning")
    yield Table(f"gates-{number}", caption, columns, rows, f"Setting: {describe_setting(result)}.", failed, prose=True)
    if tensors := gate_rows.make_tensor_rows(pair):
        caption = f"Every tensor of {names} in execution order: relative errors."
        yield Table(f"tensors-{number}", caption, gate_rows.TENSOR_COLUMNS, tensors, detail=True)


def _pair(result: Result) -> Content | None:
    table = pair_text.make_table(result.spec)
    return Content(lines=[f"{line}." for line in pair_text.make_lines(result.spec)], tables=[table]) if table else None


def _fairness(result: Result) -> Content:
    table = fairness.make_table(result)
    lines = [] if table else ["No contender came far enough to have its settings read back."]
    return Content(lines=lines, tables=[table] if table else ())


def _telemetry(result: Result) -> Content:
    return Content(lines=list(telemetry_text.list_lines(result)), picture=telemetry_plot.make_picture(result))


def _environment(result: Result) -> Content:
    spec = result.spec
    inputs = {
        "seed": str(spec.seed),
        "data": spec.data_source,
        "data, SHA-256": spec.data_sha256,
        "initial weights, SHA-256": spec.weights_sha256,
    }
    return Content(command=shlex.join(result.command), tables=environment_table.make_tables(result.environment, inputs))


SECTIONS: tuple[SectionKind, ...] = (
    SectionKind(
        "ratio",
        "Ratio of step times",
        _ratio,
        claims=lambda result: map(describe_comparison, _list_told(result)),
        definitions=_define_ratio,
    ),
    SectionKind(
        "measured",
        "Measured",
        _measured,
        remarks=lambda result: measurements.list_remarks(result.contenders),
        definitions=lambda result: measurements.list_definitions(result.contenders),
    ),
    SectionKind("explanation", "Where a step goes", _explanation),
    SectionKind("layers", "Layers by difference", _layers),
    SectionKind("requests", "Throughput against latency", lambda result: _requests(result)),
    SectionKind("steps", "Step times by round", lambda result: Content(picture=step_plot.make_picture(result))),
    SectionKind(
        "memory",
        "Memory by definition",
        _memory,
        remarks=lambda result: measurements.explain_absent_memory(result.contenders),
    ),
    SectionKind("loss", "Loss curves", lambda result: Content(picture=loss_plot.make_picture(result))),
    SectionKind("certificate", "Certificate", _certificate, claims=lambda result: describe_agreement(result.agreement)),
    SectionKind("pair", "The pair", _pair, remarks=lambda result: pair_text.make_lines(result.spec)),
    SectionKind("fairness", "Fairness: effective settings", _fairness),
    SectionKind(
        "telemetry",
        "Telemetry",
        _telemetry,
        remarks=lambda result: telemetry_text.list_lines(result, is_told=telemetry_text.is_disturbed(result)),
    ),
    SectionKind("environment", "Environment and command", _environment),
)
