"""Print the certificate in a terminal, after `samestep agree`."""

from rich.console import Console
from rich.text import Text

from compare.report import columns, pair_text
from compare.report.gate_rows import (
    GATE_COLUMNS,
    MEANINGS,
    TENSOR_COLUMNS,
    TENSOR_MEANINGS,
    make_gate_rows,
    make_tensor_rows,
)
from compare.report.sentences import describe_status, make_heading, make_plain
from compare.results.model import Result


def render(result: Result, console: Console, *, verbose: bool) -> None:
    """Print the gates, the first mismatch and the notes of every pair. `verbose` adds every tensor."""

    def say(text: str, before: str = "") -> None:
        console.print(Text(before + make_plain(text)))

    agreement = result.agreement
    say(make_heading(result))
    for line in pair_text.make_lines(result.spec):
        say(line)
    for contender in result.contenders:
        if contender.status != "ok":
            say(f"{contender.name}: {contender.status}, {contender.reason}")
    for pair in agreement.pairs:
        say(f"{pair.contender} against {pair.baseline}: {pair.status.upper()}", before="\n")
        columns.show(GATE_COLUMNS, make_gate_rows(pair), console, prose=(4,))
        if pair.first_mismatch:
            say(f"first mismatch: {pair.first_mismatch}")
        for note in pair.notes:
            say(note)
        if verbose:
            columns.show(TENSOR_COLUMNS, make_tensor_rows(pair), console)
    if verbose and any(pair.tensors for pair in agreement.pairs):
        console.print()
        for name, meaning in TENSOR_MEANINGS.items():
            say(f"{name}: {meaning}")
    shown = {gate.name for gate in agreement.gates}
    console.print()
    for name, meaning in MEANINGS.items():
        if name in shown:
            say(f"{name}: {meaning}")
    say(describe_status(agreement), before="\n")
