"""The sections of a scaling's report, as `compare.report.sections` has those of one comparison."""

import shlex
from collections.abc import Iterable

from compare.report import environment_table
from compare.report.document import Part, Section, Table
from compare.report.sentences import count_noun, describe_source, format_percent
from compare.studies import scaling_plot, scaling_report
from compare.studies.scaling_model import Scaling

_COLUMNS = ("contender", "devices", "images/s", "efficiency", "MiB", "exposed", "agrees")


def build_part(scaling: Scaling) -> Part:
    """Return the report of a scaling."""
    spec, verdict = scaling.spec, summarise(scaling)
    setting = (
        f"{spec.mode} scaling of {spec.workload} in {spec.precision}, {scaling_report.describe_batch(spec)}, on "
        f"{scaling_report.describe_device(scaling)}"
    )
    rounds = f"{count_noun(spec.rounds, 'round')} of fresh processes on each number of devices"
    intervals = f"{format_percent(spec.confidence, 6)} intervals by Welch's t over rounds"
    rows = [(entry.contender, str(entry.devices), *scaling_report.make_cells(entry)) for entry in scaling.scaling]
    caption = f"Efficiency is {scaling_report.define_efficiency(scaling)}."
    table = Table("scaling", caption, _COLUMNS, rows, f"Setting: {setting}; {rounds}, {intervals}.")
    return Part(
        claim=verdict,
        verdict=verdict,
        setting=setting,
        heading=scaling_report.make_heading(scaling),
        source=describe_source(scaling.environment, scaling.created, scaling.id, rounds),
        sections=(
            Section(
                name="scaling",
                title="Efficiency by number of devices",
                lines=_sentences(scaling_report.list_remarks(scaling)),
                picture=scaling_plot.make_picture(scaling),
                tables=[table],
            ),
            Section(
                name="comparisons", title="Against each other", lines=_sentences(scaling_report.list_claims(scaling))
            ),
            Section(
                name="definitions", title="Definitions", lines=_sentences(scaling_report.list_definitions(scaling))
            ),
            Section(
                name="environment",
                title="Environment and command",
                command=shlex.join(scaling.command),
                tables=environment_table.make_tables(scaling.environment, {"seed": str(spec.seed)}),
            ),
        ),
    )


def _sentences(lines: Iterable[str]) -> list[str]:
    return [f"{line}." for line in lines]


def summarise(scaling: Scaling) -> str:
    """Return the efficiency of each contender on the most devices in one sentence."""
    devices = scaling.spec.devices
    if len(devices) == 1:
        return f"{count_noun(devices[0], 'device')} alone: nothing says how the contenders scale"
    last = [entry for entry in scaling.scaling if entry.devices == devices[-1]]
    efficiencies = [
        f"{entry.contender} {scaling_report.describe_efficiency(entry)}" for entry in last if entry.efficiency
    ]
    missing = [entry.contender for entry in last if not entry.efficiency]
    parts = [f"efficiency on {devices[-1]} devices: {', '.join(efficiencies)}"] if efficiencies else []
    parts += [f"no efficiency on {devices[-1]} devices for {', '.join(missing)}"] if missing else []
    return "; ".join(parts)
