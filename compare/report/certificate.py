"""The certificate as a person reads it in a terminal after `samestep agree`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from compare.report.gates import GATE_COLUMNS, MEANINGS, TENSOR_COLUMNS, gate_rows, tensor_rows
from compare.report.sentences import heading, plain
from compare.report.terminal import grid


def render(result: Mapping[str, Any], console: Console, *, verbose: bool) -> None:
    """Print the gates of every pair, the first mismatch, notes, and with `verbose` every tensor."""

    def say(text: str, before: str = "") -> None:
        console.print(Text(before + plain(text)))

    agreement = result["agreement"]
    say(heading(result))
    for contender in result["contenders"]:
        if contender["status"] != "ok":
            say(f"{contender['name']}: {contender['status']}, {contender['reason']}")
    for pair in agreement["pairs"]:
        say(f"{pair['contender']} against {pair['baseline']}: {pair['status'].upper()}", before="\n")
        console.print(grid(GATE_COLUMNS, gate_rows(pair)))
        if pair["first_mismatch"]:
            say(f"first mismatch: {pair['first_mismatch']}")
        for note in pair.get("notes", ()):
            say(note)
        if verbose:
            console.print(grid(TENSOR_COLUMNS, tensor_rows(pair)))
    shown = {gate["name"] for gate in agreement["gates"]}
    console.print()
    for name, meaning in MEANINGS.items():
        if name in shown:
            say(f"{name}: {meaning}")
    reason = f" ({agreement['reason']})" if agreement["reason"] else ""
    say(f"agreement in {agreement['precision']}: {agreement['status']}{reason}", before="\n")
