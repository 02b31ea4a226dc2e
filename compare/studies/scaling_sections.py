"""What a report of a scaling says, section by section, as `compare.report.sections` does of one comparison."""

import shlex
from collections.abc import Mapping
from typing import Any

from compare.report import environment_table
from compare.report.document import Part, Section, Table
from compare.report.sentences import counted, name_device, percent, source
from compare.results.model import Environment
from compare.studies import scaling_plot as picture
from compare.studies import scaling_report

Result = Mapping[str, Any]

_COLUMNS = ("contender", "devices", "images/s", "efficiency", "MiB", "exposed", "agrees")


def part(result: Result) -> Part:
    """Return all that a report says of a valid scaling (`compare.studies.scaling_result`)."""
    spec, said = result["spec"], verdict(result)
    environment = Environment(extra=result["environment"])
    setting = f"{spec['mode']} scaling of {spec['workload']} in {spec['precision']}, {scaling_report.batch(spec)}, on "
    setting += name_device(spec["device"], environment)
    rounds = f"{counted(spec['rounds'], 'round')} of fresh processes on each number of devices"
    level = f"{percent(spec['confidence'], 6)} intervals by Welch's t over rounds"
    rows = [(each["contender"], str(each["devices"]), *scaling_report.cells(each)) for each in result["scaling"]]
    caption = f"Efficiency is {scaling_report.definition(result)}."
    table = Table("scaling", caption, _COLUMNS, rows, f"Setting: {setting}; {rounds}, {level}.")
    return Part(
        claim=said,
        verdict=said,
        setting=setting,
        heading=scaling_report.heading(result),
        source=source(environment, result["created"], result["id"], rounds),
        sections=(
            Section(
                name="scaling",
                title="Efficiency by number of devices",
                lines=[f"{line}." for line in scaling_report.remarks(result)],
                picture=picture.picture(result),
                tables=[table],
            ),
            Section(
                name="comparisons",
                title="Against each other",
                lines=[f"{line}." for line in scaling_report.claims(result)],
            ),
            Section(
                name="definitions",
                title="Definitions",
                lines=[f"{line}." for line in scaling_report.definitions(result)],
            ),
            Section(
                name="environment",
                title="Environment and command",
                command=shlex.join(result["command"]),
                tables=environment_table.tables(environment, {"seed": str(spec["seed"])}),
            ),
        ),
    )


def verdict(result: Result) -> str:
    """Return in one sentence how well each contender uses the most devices."""
    spec = result["spec"]
    most = [each for each in result["scaling"] if each["devices"] == spec["devices"][-1]]
    if len(spec["devices"]) == 1:
        return f"{counted(spec['devices'][0], 'device')} alone: nothing says how the contenders scale"
    found = [f"{each['contender']} {scaling_report.efficiency(each)}" for each in most if each["efficiency"]]
    lacking = [each["contender"] for each in most if not each["efficiency"]]
    said = [f"efficiency on {spec['devices'][-1]} devices: {', '.join(found)}"] if found else []
    said += [f"no efficiency on {spec['devices'][-1]} devices for {', '.join(lacking)}"] if lacking else []
    return "; ".join(said)
