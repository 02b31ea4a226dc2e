"""Write JUnit XML: a test case for each comparison. INVALID fails it, and INCONCLUSIVE skips it."""

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from compare.report import long_form
from compare.report.compact import Row
from compare.report.formats import Format
from compare.report.sentences import describe_comparison, make_plain
from compare.results.model import Result


def render(results: Sequence[Result]) -> str:
    """Return the verdicts of results as JUnit XML, with a suite for each result."""
    suites = Element("testsuites", name="samestep")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for result in results:
        suite, counts = _make_suite(result)
        suites.append(suite)
        totals = {name: count + counts[name] for name, count in totals.items()}
    suites.attrib |= {name: str(count) for name, count in totals.items()}
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def list_names(result: Result) -> set[str]:
    """Return the name of every test case of a result, with its suite."""
    return {f"{long_form.name_setting(result)}: {_name_case(row)}" for row in long_form.list_rows([result])}


FORMAT = Format(
    "junit",
    "Write JUnit XML with the verdicts.",
    lambda _, results, __: render(results),
    list_names=list_names,
)


def _name_case(row: Row) -> str:
    assert row.comparison is not None
    batch = "" if row.batch_size is None else f", batch {row.batch_size}"
    return f"{row.comparison.contender} / {row.comparison.baseline}{batch}"


def _make_suite(result: Result) -> tuple[Element, dict[str, int]]:
    name = make_plain(long_form.name_setting(result))
    suite, counts = Element("testsuite", name=name, timestamp=result.created.removesuffix("Z")), dict[str, int]()
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for row in long_form.list_rows([result]):
        comparison = row.comparison
        assert comparison is not None
        case = SubElement(suite, "testcase", classname=name, name=make_plain(_name_case(row)))
        said = make_plain(describe_comparison(comparison))
        counts["tests"] += 1
        if row.contender.status != "ok":
            SubElement(case, "error", message=make_plain(row.contender.reason or row.contender.status), type="error")
            counts["errors"] += 1
        elif comparison.verdict == "INVALID":
            SubElement(case, "failure", message=said, type="INVALID")
            counts["failures"] += 1
        elif comparison.verdict == "INCONCLUSIVE":
            SubElement(case, "skipped", message=said)
            counts["skipped"] += 1
        SubElement(case, "system-out").text = said
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    return suite, counts
