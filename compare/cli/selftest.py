"""`samestep selftest`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from compare.cli import exit_codes
from compare.cli.command_line import takes_options
from compare.execution import execute, progress
from compare.settings.options import DEFAULT_CONTENDERS, Settings
from compare.studies import selftest as selftests


@takes_options("selftest")
def selftest(
    settings: Settings,
    as_json: bool,
    backends: Annotated[
        list[str] | None,
        typer.Argument(metavar="BACKEND", help="torch or jax. Default: both.", show_default=False),
    ] = None,
) -> None:
    """Prove that samestep measures correctly on this machine.

    The proofs have inputs with known results.
    """
    with execute.report_interruption(), progress.show() as advance:
        proofs = selftests.run(backends or DEFAULT_CONTENDERS, settings.device, advance)
    if as_json:
        typer.echo(json.dumps([asdict(proof) for proof in proofs], indent=2))
    else:
        selftests.render(proofs, Console())
    raise typer.Exit(_exit_code(proofs))


def _exit_code(proofs: Sequence[selftests.Proof]) -> int:
    if any(proof.failed for proof in proofs):
        return exit_codes.CONTENDER_FAILED
    return exit_codes.CLAIM_FAILED if any(proof.held is False for proof in proofs) else 0
