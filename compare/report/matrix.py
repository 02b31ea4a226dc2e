"""Report several results: workload by precision, with the winner and the interval of every comparison."""

from collections import Counter
from collections.abc import Sequence

from compare.base.precisions import PRECISIONS
from compare.report import pair_text, sections
from compare.report.document import Report, Section, Table
from compare.report.plots import ratio_plot
from compare.report.sentences import (
    describe_basis,
    describe_device,
    describe_devices,
    describe_variant,
    format_percent,
    format_ratio_figures,
    name_times,
    name_winner,
    name_work,
)
from compare.results.model import Comparison, Result

Results = Sequence[Result]


def report(results: Results) -> Report:
    """Return the report of one or several results. Several begin with an overview."""
    parts = [sections.make_part(result) for result in results]
    if len(parts) == 1:
        return Report(parts[0].claim, parts[0].verdict, None, parts)
    said = summarise(results)
    return Report(said, said, make_overview(results), parts)


def summarise(results: Results) -> str:
    """Return in one sentence how the comparisons of several results ended."""
    ends: dict[str, Counter[str]] = {}
    for comparison in (comparison for result in results for comparison in result.comparisons):
        pair = f"{comparison.contender} against {comparison.baseline}"
        ends.setdefault(pair, Counter())[comparison.verdict] += 1
    said = [
        f"{pair} is {', '.join(f'{verdict} in {count} of {counts.total()}' for verdict, count in counts.items())}"
        for pair, counts in ends.items()
    ]
    return f"{len(results)} results: {'; '.join(said) or 'nothing was timed'}"


def make_overview(results: Results) -> Section:
    """Return the matrix of several results as a table, and all their ratios as a picture."""
    columns = [name for name in PRECISIONS if any(result.spec.precision == name for result in results)]
    many_devices = len({describe_device(result) for result in results}) > 1
    many_models = len({tuple(models) for result in results if (models := pair_text.list_models(result.spec))}) > 1
    comparisons = [comparison for result in results for comparison in result.comparisons]
    pairs = list(dict.fromkeys(_pair(comparison) for comparison in comparisons))
    many_levels = len({comparison.ratio.confidence for comparison in comparisons if comparison.ratio}) > 1
    cells: dict[tuple[str, ...], dict[str, list[str]]] = {}
    workloads = list(dict.fromkeys(result.spec.workload for result in results))
    for result in sorted(results, key=lambda result: workloads.index(result.spec.workload)):
        entries = [(each.batch_size, _pair(each), _entry(each, many_levels)) for each in result.comparisons]
        for size, pair, entry in entries or [(None, "", f"not timed, agreement {result.agreement.status}")]:
            name = _row_name(result, size, many_devices, many_models)
            row = cells.setdefault((name, pair) if len(pairs) > 1 else (name,), {})
            row.setdefault(result.spec.precision, []).append(entry)
    rows = [(*named, *("; ".join(row.get(column, ())) for column in columns)) for named, row in cells.items()]
    heads = ("workload", "contenders") if len(pairs) > 1 else ("workload",)
    times = name_times(results)
    ratio = f"the ratio of {times} ({pairs[0]})" if len(pairs) == 1 else f"each ratio of {times}"
    caption = f"The faster contender, with {ratio} and its interval."
    table = Table("matrix", caption, (*heads, *columns), rows, describe_basis(results), prose=True)
    picture = ratio_plot.make_picture(results)
    return Section(name="matrix", title="Workload by precision", picture=picture, tables=[table])


def _row_name(result: Result, size: int | None, many_devices: bool, many_models: bool) -> str:
    """Return the name of a row. `size` is the batch size of requests, None for training."""
    spec, models = result.spec, pair_text.list_models(result.spec)
    work = f"{name_work(spec)} ({' and '.join(models)})" if many_models and models else name_work(spec)
    devices = describe_devices(result, names_exceptions=False)
    name = f"{work}, batch {size or spec.batch_size}{describe_variant(spec)}{devices}"
    return f"{name}, {describe_device(result)}" if many_devices else name


def _pair(comparison: Comparison) -> str:
    return f"{comparison.contender} / {comparison.baseline}"


def _entry(comparison: Comparison, many_levels: bool) -> str:
    """Return the winner, with the ratio if it may be shown."""
    ratio, words = comparison.claimed_ratio, [name_winner(comparison)]
    if ratio is not None:
        estimate, low, high = format_ratio_figures(ratio)
        level = f"{format_percent(ratio.confidence, 6)} " if many_levels else ""
        words.append(f"{estimate} ({level}{low} to {high})")
    return " ".join(words)
