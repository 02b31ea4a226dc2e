"""The certificate as a person reads it in a terminal after `samestep agree`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from compare.report import columns, pair_text
from compare.report.gate_rows import (
    GATE_COLUMNS,
    MEANINGS,
    TENSOR_COLUMNS,
    TENSOR_MEANINGS,
    gate_rows,
    tensor_rows,
)
from compare.report.sentences import heading, plain


def render(result: Mapping[str, Any], console: Console, *, verbose: bool) -> None:
    """Print the gates of every pair, the first mismatch, notes, and with `verbose` every tensor."""

    def say(text: str, before: str = "") -> None:
        console.print(Text(before + plain(text)))

    agreement = result["agreement"]
    say(heading(result))
    for line in pair_text.lines(result):
        say(line)
    for contender in result["contenders"]:
        if contender["status"] != "ok":
            say(f"{contender['name']}: {contender['status']}, {contender['reason']}")
    for made in agreement["pairs"]:
        say(f"{made['contender']} against {made['baseline']}: {made['status'].upper()}", before="\n")
        columns.show(GATE_COLUMNS, gate_rows(made), console, prose=(4,))
        if made["first_mismatch"]:
            say(f"first mismatch: {made['first_mismatch']}")
        for note in made.get("notes", ()):
            say(note)
        if verbose:
            columns.show(TENSOR_COLUMNS, tensor_rows(made), console)
    if verbose and any(made.get("tensors") for made in agreement["pairs"]):
        console.print()
        for name, meaning in TENSOR_MEANINGS.items():
            say(f"{name}: {meaning}")
    shown = {gate["name"] for gate in agreement["gates"]}
    console.print()
    for name, meaning in MEANINGS.items():
        if name in shown:
            say(f"{name}: {meaning}")
    reason = f" ({agreement['reason']})" if agreement["reason"] else ""
    say(f"agreement in {agreement['precision']}: {agreement['status']}{reason}", before="\n")
