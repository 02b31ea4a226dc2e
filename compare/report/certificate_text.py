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
from compare.report.sentences import describe_status, explain_mismatch, make_heading, make_plain
from compare.results.model import Result


def render(result: Result, console: Console, *, verbose: bool) -> None:
    """Print the outcome of every pair, then its cause with the repairs, then gates, notes and definitions.

    `verbose` adds every tensor.
    """

    def say(text: str, before: str = "") -> None:
        indent = text[: len(text) - len(text.lstrip(" "))]
        console.print(Text(before + indent + make_plain(text)))

    agreement = result.agreement
    say(make_heading(result))
    for contender in result.contenders:
        if contender.status != "ok":
            say(f"{contender.name}: {contender.status}, {contender.reason}")
    for pair in agreement.pairs:
        say(f"{pair.contender} against {pair.baseline}: {pair.status.upper()}", before="\n")
        explanation = explain_mismatch(pair)
        for line in [*explanation, ""] if explanation else []:
            say(line)
        columns.show(GATE_COLUMNS, make_gate_rows(pair), console, prose=(4,))
        for note in pair.notes:
            say(note)
        if verbose:
            columns.show(TENSOR_COLUMNS, make_tensor_rows(pair), console)
    for index, line in enumerate(pair_text.make_lines(result.spec)):
        say(line, before="" if index else "\n")
    console.print()
    shown = {gate.name for gate in agreement.gates}
    definitions = {name: meaning for name, meaning in MEANINGS.items() if name in shown}
    if verbose and any(pair.tensors for pair in agreement.pairs):
        definitions |= TENSOR_MEANINGS
    elif any("(e64 " in (pair.first_mismatch or "") for pair in agreement.pairs):
        definitions |= {name: meaning for name, meaning in TENSOR_MEANINGS.items() if "e64" in name}
    for name, meaning in definitions.items():
        say(f"{name}: {meaning}")
    say(describe_status(agreement), before="\n")
