"""`samestep bundle`."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from compare import consistency, output, results, untrusted
from compare.commands import options
from compare.interface import Refused
from compare.reproduction import bundle as bundles


def bundle(
    file: Annotated[
        Path,
        typer.Argument(metavar="RESULT", parser=options.path, help="A result.json, or its folder.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", parser=options.path, help="The zip file to write.", show_default=False)
    ],
) -> None:
    """Pack a result with its raw samples, report, versions and checksums into one zip file."""
    file = results.named(file)
    output.check_there(f"--out {out}", out.parent)
    with suppress(OSError):  # one of them is not there, which is said of the result when it is read
        if out.samefile(file):
            raise Refused(f"--out {out} would be written over the result; allowed: another file")
    try:
        data = untrusted.read(file, untrusted.SIZE_LIMIT, results.KIND)
        consistency.check_verdicts(results.parse(data))
        packed = bundles.make(data)
    except Refused as error:
        raise Refused(f"{file}: {error}") from None
    typer.echo(f"bundle: {results.replace_bytes(out, packed)} ({len(packed):,} bytes)")
