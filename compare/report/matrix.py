"""Several results at once: workload by precision, with the winner and the interval of every comparison."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from compare.base.precisions import PRECISIONS
from compare.report import pair_text as pair_words
from compare.report import sections
from compare.report.document import Report, Section, Table
from compare.report.plots import ratio_plot
from compare.report.sentences import basis, device, over_devices, percent, ratio_figures, way

Results = Sequence[Mapping[str, Any]]


def report(results: Results) -> Report:
    """Return the report of one or several valid results; of several, an overview comes first."""
    parts = [sections.part(result) for result in results]
    if len(parts) == 1:
        return Report(parts[0].claim, parts[0].verdict, None, parts)
    said = verdict(results)
    return Report(said, said, overview(results), parts)


def verdict(results: Results) -> str:
    """Return in one sentence how the comparisons of several results ended."""
    ends: dict[str, Counter[str]] = {}
    for each in (comparison for result in results for comparison in result["comparisons"]):
        ends.setdefault(f"{each['contender']} against {each['baseline']}", Counter())[each["verdict"]] += 1
    found = [
        f"{pair} is {', '.join(f'{verdict} in {count} of {counts.total()}' for verdict, count in counts.items())}"
        for pair, counts in ends.items()
    ]
    return f"{len(results)} results: {'; '.join(found) or 'nothing was timed'}"


def overview(results: Results) -> Section:
    """Return the matrix of several results as a table, with all their ratios as a picture."""
    columns = [name for name in PRECISIONS if any(result["spec"]["precision"] == name for result in results)]
    many_devices = len({device(result) for result in results}) > 1
    many_models = len({tuple(models) for result in results if (models := pair_words.models(result))}) > 1
    comparisons = [each for result in results for each in result["comparisons"]]
    pairs = list(dict.fromkeys(_pair(each) for each in comparisons))
    many_levels = len({each["ratio"]["confidence"] for each in comparisons if each["ratio"]}) > 1
    cells: dict[tuple[str, ...], dict[str, list[str]]] = {}
    workloads = list(dict.fromkeys(result["spec"]["workload"] for result in results))
    for result in sorted(results, key=lambda each: workloads.index(each["spec"]["workload"])):
        name = _row_name(result, many_devices, many_models)
        entries = [(_pair(each), _entry(each, many_levels)) for each in result["comparisons"]]
        for pair, entry in entries or [("", f"not timed, agreement {result['agreement']['status']}")]:
            row = cells.setdefault((name, pair) if len(pairs) > 1 else (name,), {})
            row.setdefault(result["spec"]["precision"], []).append(entry)
    rows = [(*named, *("; ".join(row.get(column, ())) for column in columns)) for named, row in cells.items()]
    heads = ("workload", "contenders") if len(pairs) > 1 else ("workload",)
    ratio = f"the ratio of step times ({pairs[0]})" if len(pairs) == 1 else "each ratio of step times"
    caption = f"The faster one, with {ratio} and its interval."
    table = Table("matrix", caption, (*heads, *columns), rows, basis(results), prose=True)
    return Section("matrix", "Workload by precision", picture=ratio_plot.picture(results), tables=[table])


def winner(comparison: Mapping[str, Any]) -> str:
    """Return who is faster: a contender's name, `equal`, `undecided`, or `INVALID` where there is no claim."""
    return {
        "FASTER": comparison["contender"],
        "SLOWER": comparison["baseline"],
        "EQUIVALENT": "equal",
        "INCONCLUSIVE": "undecided",
        "INVALID": "INVALID",
    }[comparison["verdict"]]


def _row_name(result: Mapping[str, Any], many_devices: bool, many_models: bool) -> str:
    spec, models = result["spec"], pair_words.models(result)
    workload = f"{spec['workload']} ({' and '.join(models)})" if many_models and models else spec["workload"]
    name = f"{workload}, batch {spec['batch_size']}{way(spec)}{over_devices(result, who=False)}"
    return f"{name}, {device(result)}" if many_devices else name


def _pair(comparison: Mapping[str, Any]) -> str:
    return f"{comparison['contender']} / {comparison['baseline']}"


def _entry(comparison: Mapping[str, Any], many_levels: bool) -> str:
    """Return the winner, and the ratio where there is one to claim."""
    ratio, words = comparison["ratio"], [winner(comparison)]
    if ratio is not None and comparison["verdict"] != "INVALID":
        estimate, low, high = ratio_figures(ratio)
        level = f"{percent(ratio['confidence'], 6)} " if many_levels else ""
        words.append(f"{estimate} ({level}{low} to {high})")
    return " ".join(words)
