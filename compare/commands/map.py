"""`samestep map`."""

import json
import tempfile
from pathlib import Path

import typer

from compare import plan, runner
from compare.commands import options, pairs
from compare.interface import Refused
from compare.pairing.asked import Request
from compare.report.sentences import printable
from compare.tuning.naming import DEFAULT_CONTENDERS
from compare.workloads import Workload


@pairs.taken
def map(
    workload: Workload | None = None,
    deadline: options.Deadline = None,
    request: Request | None = None,
) -> None:
    """Match the layers of your own pair and print which of torch's variables is which of flax's, as JSON."""
    if workload is None:
        raise Refused("samestep map needs a pair: --jax, --torch, --input, --classes")
    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        chosen = plan.make(
            DEFAULT_CONTENDERS, out=Path(folder), workload=workload, rounds=None, deadline=deadline, request=request
        )
        found = runner.matched(chosen)
    for traced in found.traces.values():
        for note in traced.notes:
            typer.echo(f"samestep: {printable(note)}", err=True)
    typer.echo(json.dumps(found.matching.to_map(), indent=2))
