"""What was measured of each contender, as rows of text, and what must be said beside them: the same in every format."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from compare.machine import variables
from compare.machine.memory import DEFINITIONS
from compare.report.sentences import DASH, percent
from compare.results import verdicts

_STEP_TIME = "step time: geometric mean over rounds of each round's median block, Student's t interval"
ONE_SEARCH = "one search for kernels for all rounds; no interval contains what another would choose (--search-anew)"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_MEBIBYTE = 2**20
_LARGE = 1e12

Contenders = Sequence[Mapping[str, Any]]


def rows(contenders: Contenders, spec: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return (label with unit, a cell for each contender) of every figure that any contender has."""

    def row(label: str, cell: Callable[[Mapping[str, Any]], str | None]) -> None:
        cells = [cell(each) for each in contenders]
        if any(value is not None for value in cells):
            found.append((label, [DASH if value is None else value for value in cells]))

    found: list[tuple[str, list[str]]] = []
    steps = [_step(each) for each in contenders]
    scale, unit = time_unit([step["estimate"] for step in steps if step])
    if any(each["status"] != "ok" for each in contenders):
        row("status", lambda each: each["status"])
    row("compile (s)", lambda each: _number(each["compile_seconds"]))
    cold = any(each["compile_seconds"] is not None for each in contenders)
    cached = "  from cache (s)" if cold else "compile, from cache (s)"
    row(cached, lambda each: _number(each.get("cached_compile_seconds")))
    row("first step (s)", lambda each: _number(each["first_step_seconds"]))
    row("warm-up (s)", lambda each: _number(each["warmup_seconds"]))
    row(f"step time ({unit})", lambda each: _scaled(_step(each), ["estimate"], scale))
    row(f"  {percent(spec['confidence'], 6)} interval", lambda each: _scaled(_step(each), ["low", "high"], scale))
    row("images/s", lambda each: _number(each["images_per_second"]))
    for figure in memory_figures(contenders):
        row(f"{memory_label(figure)} (MiB)", lambda each, figure=figure: _memory(each["memory"], figure))
    row("energy (J/step)", lambda each: _number(_energy(each)["joules_per_step"]))
    row("idle power (W)", lambda each: _number(_energy(each)["idle_watts"]))
    row("final loss", lambda each: _last_loss(each["training"]))
    for part in ("train", "test"):
        row(f"{part} accuracy (%)", lambda each, part=part: _accuracy(each["training"], part))
    return found


def is_of_one_search(timed: Mapping[str, Any]) -> bool:
    """Whether a contender, or its row in a scaling, has step times of kernels that one search chose for all rounds."""
    return timed.get("kernel_search") == "once" and timed["step_seconds"] is not None


def remarks(contenders: Contenders) -> Iterator[str]:
    """Yield what a reader of the rows must know.

    That is failures, flags that do not hold, step times that never settled, how energy was measured, kernels that were
    searched for once, threads that one side has more of.
    """
    for each in contenders:
        if each["status"] != "ok" or each["reason"]:
            yield f"{each['name']}: {each['status']}, {each['reason'] or 'no reason was recorded'}"
        for first, last in variables.find_overridden_flags(each.get("variables", {}).get("XLA_FLAGS", "")):
            yield f"{each['name']}: {last} comes after {first} in XLA_FLAGS, and decides"
        if each["steady"] is False or each.get("unsteady_rounds"):
            rounds = f" in {each['unsteady_rounds']} rounds" if each.get("unsteady_rounds") else ""
            yield f"{each['name']}: no steady state{rounds}: step times still changed after warm-up"
        energy = _energy(each)
        if energy["joules_per_step"] is not None and None not in (energy["seconds"], energy["steps"]):
            yield f"{each['name']}: energy of whole boards over {energy['seconds']:.1f} s, {energy['steps']:,} steps"
    if once := [each["name"] for each in contenders if is_of_one_search(each)]:
        yield f"{', '.join(once)}: {ONE_SEARCH}"
    told = {each["name"]: each["settings"] for each in contenders if each["settings"].get("devices", 1) == 1}
    threads = {name: count for name, each in told.items() if isinstance(count := each.get("threads"), int)}
    if len(set(threads.values())) > 1:
        yield f"unlike numbers of threads: {', '.join(f'{name} {count}' for name, count in threads.items())}"


def absent_memory(contenders: Contenders) -> Iterator[str]:
    """Yield why memory figures are missing, each reason once with the figures and contenders that it is of."""
    absent: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for figure in memory_figures(contenders):
        for each in contenders:
            if each["memory"] and each["memory"][figure] is None:
                reason = each["memory"]["absent"].get(figure, "no reason was recorded")
                labels, names = absent.setdefault(reason, ({}, {}))
                labels[memory_label(figure)] = names[each["name"]] = None
    for reason, (labels, names) in absent.items():
        yield f"{', '.join(labels)}: not available for {', '.join(names)}: {reason}"


def definitions(contenders: Contenders) -> Iterator[str]:
    """Yield what the step time and each memory figure in the rows mean."""
    yield from step_definition(contenders)
    for figure in memory_figures(contenders):
        yield f"{memory_label(figure)}: {DEFINITIONS[figure]}"


def step_definition(contenders: Contenders) -> Iterator[str]:
    """Yield what a step time and its interval are, where there is one."""
    if any("low" in (_step(each) or {}) for each in contenders):
        yield _STEP_TIME


def memory_figures(contenders: Contenders) -> list[str]:
    """Return the keys of the memory figures that any contender has, or lacks with a reason."""
    memories = [each["memory"] for each in contenders if each["memory"]]
    return [name for name in DEFINITIONS if any(m[name] is not None or name in m["absent"] for m in memories)]


def memory_label(figure: str) -> str:
    """Return a memory figure's name for readers: `live_peak_bytes` is `live peak`."""
    return figure.removesuffix("_bytes").replace("_", " ")


def mebibytes(value: float) -> str:
    """Return bytes in MiB."""
    return f"{value / _MEBIBYTE:,.1f}"


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """Return (seconds of the unit, its symbol): the largest of s, ms and µs in which every time is at least 1."""
    least = min(seconds, default=1.0)
    return next((unit for unit in _UNITS if least >= unit[0]), _UNITS[-1])


def _step(contender: Mapping[str, Any]) -> Mapping[str, float] | None:
    estimate = verdicts.step_seconds(contender)
    return None if estimate is None else contender["step_seconds"]["interval"] or {"estimate": estimate}


def _energy(contender: Mapping[str, Any]) -> Mapping[str, Any]:
    return contender.get("energy") or {"joules_per_step": None, "idle_watts": None}


def _number(value: float | None) -> str | None:
    if not value:
        return None if value is None else "0"
    return f"{value:.3g}" if value >= _LARGE else f"{value:,.{_decimals(value, 3)}f}"


def _scaled(step: Mapping[str, float] | None, keys: list[str], scale: float) -> str | None:
    if not step or keys[0] not in step:
        return None
    decimals = _decimals(step["estimate"] / scale, 4)
    values = [step[key] / scale for key in keys]
    return DASH.join(f"{value:.4g}" if value >= _LARGE else f"{value:,.{decimals}f}" for value in values)


def _decimals(value: float, digits: int) -> int:
    return min(max(0, digits - 1 - math.floor(math.log10(abs(value)))), 12)


def _memory(memory: Mapping[str, Any] | None, figure: str) -> str | None:
    # A dash, not None: a figure absent everywhere keeps its row, so that the reason below has something to explain.
    value = memory[figure] if memory else None
    return DASH if value is None else mebibytes(value)


def _last_loss(training: Mapping[str, Any] | None) -> str | None:
    if not training or not training["loss"]:
        return None
    last = training["loss"][-1]
    return "not finite" if last is None else f"{last:.4g}"


def _accuracy(training: Mapping[str, Any] | None, part: str) -> str | None:
    value = training[f"{part}_accuracy"] if training else None
    return None if value is None else f"{100 * value:.2f}"
