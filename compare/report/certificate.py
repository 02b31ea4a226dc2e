"""The certificate as a person reads it in a terminal after `samestep agree`."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.report.sentences import DASH, heading

_MEANINGS = {
    "semantic": "float64: largest error between the sides",
    "scaling": "float32 error / float64 error, least",
    "precision": "own error against float64 / noise floor",
    "settings": "effective settings that differ and decide the mathematics",
    "determinism": "tensors that differ when run twice",
    "trajectory": "distance between losses / one-ulp envelope",
    "accuracy": "test accuracy: bound of the difference (TOST)",
}


def render(result: Mapping[str, Any], console: Console, *, verbose: bool) -> None:
    """Print the gates of every pair, the first mismatch, notes, and with `verbose` every tensor."""
    agreement = result["agreement"]
    console.print(Text(heading(result)))
    for contender in result["contenders"]:
        if contender["status"] != "ok":
            console.print(Text(f"{contender['name']}: {contender['status']}, {contender['reason']}"))
    for pair in agreement["pairs"]:
        console.print(Text(f"\n{pair['contender']} against {pair['baseline']}: {pair['status'].upper()}"))
        console.print(_gates(pair))
        if pair["first_mismatch"]:
            console.print(Text(f"first mismatch: {pair['first_mismatch']}"))
        for note in pair.get("notes", ()):
            console.print(Text(note))
        if verbose:
            console.print(_tensors(pair))
    shown = {gate["name"] for gate in agreement["gates"]}
    console.print()
    for name, meaning in _MEANINGS.items():
        if name in shown:
            console.print(Text(f"{name}: {meaning}"))
    reason = f" ({agreement['reason']})" if agreement["reason"] else ""
    console.print(Text(f"\nagreement in {agreement['precision']}: {agreement['status']}{reason}"))


def _gates(pair: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("gate", "value", "limit", "", "worst tensor"):
        table.add_column(column, overflow="fold")
    for gate in pair["gates"]:
        sign = ">=" if gate["name"] == "scaling" else "<="
        passed = "pass" if gate["passed"] else "FAIL"
        worst = Text(gate["worst_tensor"] or DASH)
        table.add_row(gate["name"], _figure(gate["value"]), f"{sign} {gate['limit']:.3g}", passed, worst)
    return table


def _tensors(pair: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("tensor", "e64", "e32", "e32/e64", "noise", "baseline", "contender"):
        table.add_column(column, overflow="fold")
    for each in pair.get("tensors", ()):
        figures = (each[key] for key in ("e64", "e32", "scaling", "noise", "baseline_error", "contender_error"))
        table.add_row(Text(each["name"]), *(_figure(figure) for figure in figures))
    return table


def _figure(value: float | None) -> str:
    return DASH if value is None else f"{value:.2g}"
