"""The proofs of `samestep selftest` as a table in a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compare.studies.selftest import Proof

_HELD = {True: "pass", False: "FAIL", None: "not possible here"}


def render(proofs: Sequence[Proof], console: Console) -> None:
    """Print every proof with what was found, its limit and whether it held, and then how many did, or did not."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("proof", "found", "limit", ""):
        table.add_column(column, overflow="fold")
    for proof in proofs:
        table.add_row(Text(proof.name), Text(proof.found), Text(proof.limit), _HELD[proof.held])
    console.print(table)
    failed = sum(proof.held is False for proof in proofs)
    if failed:
        told = f"{failed} of {len(proofs)} proofs failed; where the machine had other work to do, run it again"
    elif impossible := sum(proof.held is None for proof in proofs):
        told = f"{len(proofs) - impossible} of {len(proofs)} proofs held, {impossible} not possible here"
    else:
        told = f"all of {len(proofs)} proofs held"
    console.print(Text(f"\n{told}"))
