"""`samestep bundle`."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from compare.base import output, untrusted
from compare.base.interface import Refused
from compare.cli.command_line import to_path
from compare.reproduce import bundle as bundles
from compare.results import consistency, result_file


def bundle(
    file: Annotated[
        Path,
        typer.Argument(metavar="RESULT", parser=to_path, help="A result.json, or its folder.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", parser=to_path, help="The zip file to write.", show_default=False)
    ],
) -> None:
    """Pack a result and all that it needs into one zip file.

    The file has the raw samples, the report, versions and checksums.
    """
    file = result_file.find_file(file)
    output.check_there(f"--out {out}", out.parent)
    with suppress(OSError):  # a missing result is reported when it is read
        if out.samefile(file):
            raise Refused(f"--out {out} would be written over the result; allowed: another file")
    try:
        data = untrusted.read(file, untrusted.SIZE_LIMIT, result_file.KIND)
        consistency.check_verdicts(result_file.parse(data))
        packed = bundles.make(data)
    except Refused as error:
        raise Refused(f"{file}: {error}") from None
    typer.echo(f"bundle: {result_file.replace_bytes(out, packed)} ({len(packed):,} bytes)")
