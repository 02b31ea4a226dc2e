"""The report that a person reads in a terminal after `samestep compare`: `render`.

Nothing depends on colour, and nothing in a result is taken for markup or sent to the terminal as a control code.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.measure.memory import DEFINITIONS
from compare.report import telemetry
from compare.report.sentences import DASH, agreement_lines, heading, percent, sentence

STEP_TIME = "step time: geometric mean over rounds of each round's median block, Student's t interval"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_MEBIBYTE = 2**20
_CELL_PADDING = 2


def render(result: Mapping[str, Any], console: Console) -> None:
    """Print the terminal report of a valid result object (see `compare.results`) on the console."""

    def say(text: str) -> None:
        console.print(Text(_printable(text, console)), soft_wrap=False)

    contenders: Sequence[Mapping[str, Any]] = result["contenders"]
    say(heading(result))
    say("")
    for table in _tables(_rows(contenders, result["spec"]), [each["name"] for each in contenders], console):
        console.print(table)
        say("")
    voids = [f"round {each['round']} is void: {each['reason']}" for each in result["voided"]]
    claims = [sentence(comparison) for comparison in result["comparisons"]] + agreement_lines(result["agreement"])
    definitions = [f"{_label(figure)}: {DEFINITIONS[figure]}" for figure in _figures(contenders)]
    if any("low" in (_step(each) or {}) for each in contenders):
        definitions.insert(0, STEP_TIME)
    remarks = [*_remarks(contenders), *telemetry.lines(result), *voids]
    for index, part in enumerate(part for part in (remarks, claims, definitions) if part):
        for line in ([""] if index else []) + part:
            say(line)


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """Return (seconds of the unit, its symbol): the largest of s, ms and µs in which every time is at least 1."""
    least = min(seconds, default=1.0)
    return next((unit for unit in _UNITS if least >= unit[0]), _UNITS[-1])


def _rows(contenders: Sequence[Mapping[str, Any]], spec: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    def row(label: str, cell: Callable[[Mapping[str, Any]], str | None]) -> None:
        cells = [cell(each) for each in contenders]
        if any(value is not None for value in cells):
            rows.append((label, [DASH if value is None else value for value in cells]))

    rows: list[tuple[str, list[str]]] = []
    steps = [_step(each) for each in contenders]
    scale, unit = time_unit([step["estimate"] for step in steps if step])
    if any(each["status"] != "ok" for each in contenders):
        row("status", lambda each: each["status"])
    row("compile (s)", lambda each: _number(each["compile_seconds"]))
    row("  from cache (s)", lambda each: _number(each.get("cached_compile_seconds")))
    row("first step (s)", lambda each: _number(each["first_step_seconds"]))
    row("warm-up (s)", lambda each: _number(each["warmup_seconds"]))
    row(f"step time ({unit})", lambda each: _scaled(_step(each), ["estimate"], scale))
    row(f"  {percent(spec['confidence'], 6)} interval", lambda each: _scaled(_step(each), ["low", "high"], scale))
    row("images/s", lambda each: _number(each["images_per_second"]))
    for figure in _figures(contenders):
        row(f"{_label(figure)} (MiB)", lambda each, figure=figure: _mebibytes(each["memory"], figure))
    row("energy (J/step)", lambda each: _number(_energy(each)["joules_per_step"]))
    row("idle power (W)", lambda each: _number(_energy(each)["idle_watts"]))
    row("final loss", lambda each: _last_loss(each["training"]))
    for part in ("train", "test"):
        row(f"{part} accuracy (%)", lambda each, part=part: _accuracy(each["training"], part))
    return rows


def _tables(rows: list[tuple[str, list[str]]], names: list[str], console: Console) -> Iterator[Table]:
    """Yield tables that each fit the console, with as many contenders side by side as fit."""
    rows = [(_printable(label, console), [_printable(cell, console) for cell in cells]) for label, cells in rows]
    names = [_printable(name, console) for name in names]
    first = max((cell_len(label) for label, _ in rows), default=0)
    widths = [
        max([min(cell_len(name), 24), *(cell_len(cells[index]) for _, cells in rows)])
        for index, name in enumerate(names)
    ]
    start = 0
    while (end := start + 1) <= len(names):
        width = first + widths[start] + 2 * _CELL_PADDING
        while end < len(names) and width + widths[end] + _CELL_PADDING <= console.width:
            width += widths[end] + _CELL_PADDING
            end += 1
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="")
        table.add_column("", no_wrap=True, min_width=first)
        for name, size in zip(names[start:end], widths[start:end], strict=True):
            table.add_column(Text(name, overflow="fold"), justify="right", width=size)
        for label, cells in rows:
            table.add_row(Text(label), *(Text(cell) for cell in cells[start:end]))
        yield table
        start = end


def _remarks(contenders: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in contenders:
        if each["status"] != "ok" or each["reason"]:
            yield f"{each['name']}: {each['status']}, {each['reason'] or 'no reason was recorded'}"
        if each["steady"] is False or each.get("unsteady_rounds"):
            rounds = f" in {each['unsteady_rounds']} rounds" if each.get("unsteady_rounds") else ""
            yield f"{each['name']}: no steady state{rounds}: step times still changed after warm-up"
        if (energy := _energy(each))["joules_per_step"] is not None:
            yield f"{each['name']}: energy of the whole board over {energy['seconds']:.1f} s, {energy['steps']:,} steps"
    absent: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for figure in _figures(contenders):
        for each in contenders:
            if each["memory"] and each["memory"][figure] is None:
                reason = each["memory"]["absent"].get(figure, "no reason was recorded")
                labels, names = absent.setdefault(reason, ({}, {}))
                labels[_label(figure)] = names[each["name"]] = None
    for reason, (labels, names) in absent.items():
        yield f"{', '.join(labels)}: not available for {', '.join(names)}: {reason}"


def _figures(contenders: Sequence[Mapping[str, Any]]) -> list[str]:
    memories = [each["memory"] for each in contenders if each["memory"]]
    return [name for name in DEFINITIONS if any(m[name] is not None or name in m["absent"] for m in memories)]


def _step(contender: Mapping[str, Any]) -> Mapping[str, float] | None:
    step = contender["step_seconds"]
    return (step["interval"] or {"estimate": step["median"]}) if step else None


def _energy(contender: Mapping[str, Any]) -> Mapping[str, Any]:
    return contender.get("energy") or {"joules_per_step": None, "idle_watts": None}


def _label(figure: str) -> str:
    return figure.removesuffix("_bytes").replace("_", " ")


def _number(value: float | None) -> str | None:
    if not value:
        return None if value is None else "0"
    return f"{value:,.{_decimals(value, 3)}f}"


def _scaled(step: Mapping[str, float] | None, keys: list[str], scale: float) -> str | None:
    if not step or keys[0] not in step:
        return None
    decimals = _decimals(step["estimate"] / scale, 4)
    return DASH.join(f"{step[key] / scale:,.{decimals}f}" for key in keys)


def _decimals(value: float, digits: int) -> int:
    return min(max(0, digits - 1 - math.floor(math.log10(abs(value)))), 12)


def _mebibytes(memory: Mapping[str, Any] | None, figure: str) -> str | None:
    # A dash, not None: a figure absent everywhere keeps its row, so that the reason below has something to explain.
    value = memory[figure] if memory else None
    return DASH if value is None else f"{value / _MEBIBYTE:,.1f}"


def _last_loss(training: Mapping[str, Any] | None) -> str | None:
    if not training or not training["loss"]:
        return None
    last = training["loss"][-1]
    return "not finite" if last is None else f"{last:.4g}"


def _accuracy(training: Mapping[str, Any] | None, part: str) -> str | None:
    value = training[f"{part}_accuracy"] if training else None
    return None if value is None else f"{100 * value:.2f}"


def _printable(text: str, console: Console) -> str:
    indent = text[: len(text) - len(text.lstrip(" "))]
    text = indent + " ".join(text.split())
    if console.options.ascii_only:
        text = text.replace(DASH, "-").replace("µ", "u").encode("ascii", "replace").decode("ascii")
    return "".join(character if character.isprintable() else "?" for character in text)
