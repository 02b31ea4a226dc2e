"""`samestep selftest`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from compare.cli import exit_codes, options
from compare.execution import execute, progress
from compare.settings.naming import DEFAULT_CONTENDERS
from compare.studies import selftest as selftests
from compare.studies import selftest_report


def selftest(
    backends: Annotated[list[str] | None, typer.Argument(help="torch, jax; default: both.", show_default=False)] = None,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the proofs as JSON alone.")] = False,
) -> None:
    """Prove on this machine, with known inputs, that samestep measures what it says."""
    with execute.interruptible(), progress.show() as advance:
        proofs = selftests.run(backends or DEFAULT_CONTENDERS, device, advance)
    if as_json:
        typer.echo(json.dumps([asdict(proof) for proof in proofs], indent=2))
    else:
        selftest_report.render(proofs, Console())
    raise typer.Exit(_exit_code(proofs))


def _exit_code(proofs: Sequence[selftests.Proof]) -> int:
    if any(proof.failed for proof in proofs):
        return exit_codes.CONTENDER_FAILED
    return exit_codes.CLAIM_FAILED if any(proof.held is False for proof in proofs) else 0
