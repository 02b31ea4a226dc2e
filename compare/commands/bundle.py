"""`samestep bundle`."""

from pathlib import Path
from typing import Annotated

import typer

from compare import consistency, results, untrusted
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
    if out.exists() and file.exists() and out.samefile(file):
        raise Refused(f"--out {out} would be written over the result; allowed: another file")
    if not out.parent.is_dir():
        raise Refused(f"--out {out}: {out.parent} is no folder; allowed: one that is there")
    try:
        data = untrusted.read(file, untrusted.SIZE_LIMIT, f"a {results.FILE_NAME}")
        consistency.check_verdicts(results.parse(data))
        packed = bundles.make(data)
    except Refused as error:
        raise Refused(f"{file}: {error}") from None
    typer.echo(f"bundle: {results.replace_bytes(out, packed)} ({len(packed):,} bytes)")
