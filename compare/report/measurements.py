"""The figures of each contender as rows of text, with remarks and definitions: the same in every format.

To add a row, add an entry to `ROWS`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compare.base.errors import make_printable
from compare.machine import variables
from compare.machine.memory import DEFINITIONS
from compare.report.sentences import DASH, format_percent, says_something
from compare.results.model import Contender, Latency, Training

STEP_TIME = (
    "step time: the median block of each round, averaged over rounds (geometric mean); the interval is Student's t "
    "over rounds"
)
_EXPECTED = ("the run", "not asked for")
"""The beginnings of reasons that every reader expects: a CPU has no device time and no energy."""

REQUESTS = (
    "a request: a forward pass in evaluation mode that the caller waits for, with its images on the device; p50, p90 "
    "and p99 are quantiles of a round's requests, averaged over rounds (geometric mean); the interval is Student's t "
    "over rounds, of p50; images/s is of requests that do not wait for one another"
)
ONE_SEARCH = (
    "one search for kernels serves all rounds, so the interval does not show how much another search would change "
    "(--search-anew searches in every round)"
)
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_MEBIBYTE = 2**20
_LARGE = 1e12

Contenders = Sequence[Contender]


@dataclass(frozen=True)
class Row:
    """One row of figures.

    Attributes:
        label: with the unit; a leading space indents it. `{unit}`, `{level}` and `{from_cache}` are filled in.
        cell: the text for a contender, None without a figure. A row of None only is left out.
        is_shown: whether these contenders need the row.
    """

    label: str
    cell: Callable[[Contender, float], str | None]
    is_shown: Callable[[Contenders], bool] = lambda _: True


def name_memory_figure(figure: str) -> str:
    """Return a memory figure's name for readers: `live_peak_bytes` is `live peak`."""
    return figure.removesuffix("_bytes").replace("_", " ")


def _memory_row(figure: str) -> Row:
    return Row(f"{name_memory_figure(figure)} (MiB)", lambda contender, _: _memory(contender, figure))


ROWS: tuple[Row, ...] = (
    Row("status", lambda contender, _: contender.status, lambda contenders: any(c.status != "ok" for c in contenders)),
    Row("compile (s)", lambda contender, _: _number(contender.compile_seconds)),
    Row("{from_cache} (s)", lambda contender, _: _number(contender.cached_compile_seconds)),
    Row("first step (s)", lambda contender, _: _number(contender.first_step_seconds)),
    Row("warm-up (s)", lambda contender, _: _number(contender.warmup_seconds)),
    Row("step time ({unit})", lambda contender, unit: _step_time(contender, unit)),
    Row("  {level} interval", lambda contender, unit: _step_interval(contender, unit)),
    Row("images/s", lambda contender, _: _number(contender.images_per_second)),
    *map(_memory_row, DEFINITIONS),
    Row("energy (J/step)", lambda contender, _: _number(contender.energy and contender.energy.joules_per_step)),
    Row("idle power (W)", lambda contender, _: _number(contender.energy and contender.energy.idle_watts)),
    Row("final loss", lambda contender, _: _last_loss(contender.training)),
    Row("train accuracy (%)", lambda contender, _: _accuracy(contender.training and contender.training.train_accuracy)),
    Row("test accuracy (%)", lambda contender, _: _accuracy(contender.training and contender.training.test_accuracy)),
)


def make_rows(contenders: Contenders, confidence: float) -> list[tuple[str, list[str]]]:
    """Return the label and a cell for each contender of every row that any contender has a figure for."""
    seconds, unit = time_unit([estimate for contender in contenders if (estimate := _estimate(contender))])
    has_cold_compile = any(contender.compile_seconds is not None for contender in contenders)
    names = {
        "unit": unit,
        "level": format_percent(confidence, 6),
        "from_cache": "  from cache" if has_cold_compile else "compile, from cache",
    }
    filled: list[tuple[str, list[str]]] = []
    for row in ROWS:
        cells = [row.cell(contender, seconds) for contender in contenders]
        if row.is_shown(contenders) and any(cell is not None for cell in cells):
            filled.append((row.label.format(**names), [DASH if cell is None else cell for cell in cells]))
    return filled + _latency_rows(contenders, confidence)


def _latency_rows(contenders: Contenders, confidence: float) -> list[tuple[str, list[str]]]:
    """Return the rows of requests, for each batch size in turn."""
    sizes = sorted({int(size) for contender in contenders for size in contender.latency or ()})
    filled: list[tuple[str, list[str]]] = []
    for size in sizes:
        cells = [(contender.latency or {}).get(str(size)) for contender in contenders]
        seconds, unit = time_unit([each.p50 for each in cells if each and each.p50])
        labels = {"unit": unit, "level": format_percent(confidence, 6), "size": f"{size:,}"}
        for label, cell in _OF_REQUESTS.items():
            texts = [cell(latency, seconds) if latency else None for latency in cells]
            if any(text is not None for text in texts):
                filled.append((label.format(**labels), [DASH if text is None else text for text in texts]))
    return filled


def _time(value: float | None, unit: float) -> str | None:
    return None if value is None else _scaled(value, value or unit, unit)


_OF_REQUESTS: Mapping[str, Callable[[Latency, float], str | None]] = {
    "batch {size}: p50 ({unit})": lambda latency, unit: _time(latency.p50, unit),
    "  {level} interval": lambda latency, unit: (
        None
        if latency.p50 is None
        or latency.low is None
        or latency.high is None
        or not says_something(latency.low, latency.high)
        else DASH.join(_scaled(end, latency.p50, unit) for end in (latency.low, latency.high))
    ),
    "  p90 ({unit})": lambda latency, unit: _time(latency.p90, unit),
    "  p99 ({unit})": lambda latency, unit: _time(latency.p99, unit),
    "  images/s": lambda latency, _: _number(latency.images_per_second),
    "  until the call returns ({unit})": lambda latency, unit: _time(latency.enqueue_seconds, unit),
    "  device busy ({unit})": lambda latency, unit: _time(latency.device_seconds, unit),
    "  host alone ({unit})": lambda latency, unit: _time(latency.host_seconds, unit),
    "  energy (J per 1,000 images)": lambda latency, _: _number(latency.joules_per_thousand_images),
    "  cold start to first result (s)": lambda latency, _: _number(latency.cold_start_seconds),
}
"""The rows of one batch size, each with its cell."""


def has_one_search(kernel_search: str | None, is_timed: bool) -> bool:
    """Tell whether one search for kernels served all rounds of a contender that was timed."""
    return kernel_search == "once" and is_timed


def list_remarks(contenders: Contenders) -> Iterator[str]:
    """Yield what a reader of the rows must know.

    These are failures, flags that others override, step times that never settled, how energy was measured, kernels
    that were searched for once, what earlier runs have compiled or measured, and unequal numbers of threads.
    """
    for contender in contenders:
        name = contender.name
        if contender.status != "ok" or contender.reason:
            yield f"{name}: {contender.status}, {contender.reason or 'no reason was recorded'}"
        for first, last in variables.find_overridden_flags(contender.variables.get("XLA_FLAGS", "")):
            yield f"{name}: {last} comes after {first} in XLA_FLAGS, and decides"
        if contender.steady is False or contender.unsteady_rounds:
            rounds = f" in {contender.unsteady_rounds} rounds" if contender.unsteady_rounds else ""
            yield f"{name}: no steady state{rounds}: step times still changed after warm-up"
        energy = contender.energy
        if energy and energy.joules_per_step is not None and None not in (energy.seconds, energy.steps):
            yield f"{name}: energy is that of whole boards over {energy.seconds:.1f} s, {energy.steps:,} steps"
        yield from _explain_requests(contender)
    once = [each.name for each in contenders if has_one_search(each.kernel_search, each.step_seconds is not None)]
    if once:
        yield f"{', '.join(once)}: {ONE_SEARCH}"
    yield from _remark_earlier_runs(contenders)
    settings = {each.name: each.settings for each in contenders if each.settings.get("devices", 1) == 1}
    threads = {name: count for name, each in settings.items() if isinstance(count := each.get("threads"), int)}
    if len(set(threads.values())) > 1:
        yield f"unequal numbers of threads: {', '.join(f'{name} {count}' for name, count in threads.items())}"


def _explain_requests(contender: Contender) -> Iterator[str]:
    """Yield why figures of requests are missing, and where programs came from that were compiled ahead of time."""
    reasons = dict[str, list[str]]()
    for size, latency in (contender.latency or {}).items():
        for figure, reason in latency.absent.items():
            if latency.p50 is not None and not reason.startswith(_EXPECTED):
                reasons.setdefault(f"{figure.replace('_', ' ')}: {reason}", []).append(size)
    for reason, sizes in reasons.items():
        yield f"{contender.name}, batch {', '.join(sizes)}: no {reason}"
    if contender.settings.get("exported"):
        programs = {size: latency.program for size, latency in (contender.latency or {}).items() if latency.program}
        for program in dict.fromkeys(programs.values()):
            sizes = [size for size, each in programs.items() if each == program]
            yield f"{contender.name}, batch {', '.join(sizes)}: program {program}"


def _remark_earlier_runs(contenders: Contenders) -> Iterator[str]:
    """Yield which programs and compile times come from an earlier run, and why a compile time is missing."""
    missing: dict[str, list[str]] = {}
    for contender in contenders:
        name, kept = contender.name, contender.program_kept
        if kept is not None:
            key = make_printable(kept.key)[:12]
            yield f"{name}: its programs were compiled on {make_printable(kept.created)} (key {key})"
        if contender.compile_measured is not None:
            yield f"{name}: its compile time was measured on {make_printable(contender.compile_measured)}"
        elif contender.compile_seconds is None and contender.compile_reason is not None:
            missing.setdefault(make_printable(contender.compile_reason), []).append(name)
    for reason, names in missing.items():
        yield f"{', '.join(names)}: no compile time: {reason}"


def explain_absent_memory(contenders: Contenders) -> Iterator[str]:
    """Yield why memory figures are missing: one line for the rows left out, one for each other reason."""
    shown = list_memory_figures(contenders)
    left_out: dict[str, list[str]] = {}
    dashes: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for figure in DEFINITIONS:
        absent = {
            each.name: each.memory.absent.get(figure)
            for each in contenders
            if each.memory and each.memory.figure(figure) is None
        }
        reasons = "; ".join(dict.fromkeys(reason for reason in absent.values() if reason))
        if figure not in shown and reasons:
            left_out.setdefault(reasons, []).append(name_memory_figure(figure))
        for name, reason in absent.items() if figure in shown else ():
            labels, names = dashes.setdefault(reason or "no reason was recorded", ({}, {}))
            labels[name_memory_figure(figure)] = names[name] = None
    for reasons, figures in left_out.items():
        yield f"{', '.join(figures)}: not available: {reasons}"
    for reason, (labels, names) in dashes.items():
        yield f"{', '.join(labels)}: not available for {', '.join(names)}: {reason}"


def list_definitions(contenders: Contenders) -> Iterator[str]:
    """Yield the definition of the step time and of each memory figure in the rows."""
    yield from step_definition(contenders)
    for figure in list_memory_figures(contenders):
        yield f"{name_memory_figure(figure)}: {DEFINITIONS[figure]}"


def step_definition(contenders: Contenders) -> Iterator[str]:
    """Yield the definition of a step time and its interval, if there is one."""
    if any(contender.latency for contender in contenders):
        yield REQUESTS
    if any(contender.step_seconds and contender.step_seconds.interval for contender in contenders):
        yield STEP_TIME


def list_memory_figures(contenders: Contenders) -> list[str]:
    """Return the keys of the memory figures that any contender has."""
    memories = [contender.memory for contender in contenders if contender.memory]
    return [name for name in DEFINITIONS if any(memory.figure(name) is not None for memory in memories)]


def format_mebibytes(value: float) -> str:
    """Return bytes in MiB."""
    return f"{value / _MEBIBYTE:,.1f}"


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """Return (seconds, symbol) of a unit: the largest of s, ms and µs in which every time is at least 1."""
    least = min(seconds, default=1.0)
    return next((unit for unit in _UNITS if least >= unit[0]), _UNITS[-1])


def _estimate(contender: Contender) -> float | None:
    return contender.step_seconds.estimate if contender.step_seconds else None


def _step_time(contender: Contender, unit: float) -> str | None:
    estimate = _estimate(contender)
    return None if estimate is None else _scaled(estimate, estimate, unit)


def _step_interval(contender: Contender, unit: float) -> str | None:
    interval = contender.step_seconds and contender.step_seconds.interval
    if interval is None or not says_something(interval.low, interval.high):
        return None
    return DASH.join(_scaled(end, interval.estimate, unit) for end in (interval.low, interval.high))


def _scaled(seconds: float, estimate: float, unit: float) -> str:
    """Return a time in a unit, with as many decimals as the estimate needs for four digits."""
    value = seconds / unit
    return f"{value:.4g}" if value >= _LARGE else f"{value:,.{_decimals(estimate / unit, 4)}f}"


def _number(value: float | None) -> str | None:
    if not value:
        return None if value is None else "0"
    return f"{value:.3g}" if value >= _LARGE else f"{value:,.{_decimals(value, 3)}f}"


def _decimals(value: float, digits: int) -> int:
    return min(max(0, digits - 1 - math.floor(math.log10(abs(value)))), 12)


def _memory(contender: Contender, figure: str) -> str | None:
    value = contender.memory.figure(figure) if contender.memory else None
    return None if value is None else format_mebibytes(value)


def _last_loss(training: Training | None) -> str | None:
    if not training or not training.loss:
        return None
    last = training.loss[-1]
    return "not finite" if last is None else f"{last:.4g}"


def _accuracy(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.2f}"
