"""`samestep selftest`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from compare import conduct
from compare import selftest as selftests
from compare.commands import endings, options
from compare.report import progress
from compare.report import selftest as proof_table
from compare.tuning.naming import DEFAULT_CONTENDERS


def selftest(
    backends: Annotated[list[str] | None, typer.Argument(help="torch, jax; default: both.", show_default=False)] = None,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the proofs as JSON alone.")] = False,
) -> None:
    """Prove on this machine, with known inputs, that samestep measures what it says."""
    with conduct.interruptible(), progress.shown() as advance:
        proofs = selftests.run(backends or DEFAULT_CONTENDERS, device, advance)
    if as_json:
        typer.echo(json.dumps([asdict(proof) for proof in proofs], indent=2))
    else:
        proof_table.render(proofs, Console())
    raise typer.Exit(_exit_code(proofs))


def _exit_code(proofs: Sequence[selftests.Proof]) -> int:
    if any(proof.failed for proof in proofs):
        return endings.CONTENDER_FAILED
    return endings.CLAIM_FAILED if any(proof.held is False for proof in proofs) else 0
