"""`samestep map`."""

import json
import tempfile
from pathlib import Path

import typer

from compare.base.interface import Refused
from compare.base.workloads import Workload
from compare.cli import options, pair_options
from compare.execution import phases
from compare.report.sentences import printable
from compare.settings import plan
from compare.settings.naming import DEFAULT_CONTENDERS
from compare.settings.pair_spec import Request


@pair_options.taken
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
        found = phases.match(chosen)
    for traced in found.traces.values():
        for note in traced.notes:
            typer.echo(f"samestep: {printable(note)}", err=True)
    typer.echo(json.dumps(found.matching.to_map(), indent=2))
