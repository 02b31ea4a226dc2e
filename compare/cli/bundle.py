"""`samestep bundle`."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from compare.base import output, untrusted
from compare.base.interface import Refused
from compare.cli.command_line import to_path
from compare.reproduce import archive, collection
from compare.reproduce import bundle as bundles
from compare.results import consistency, result_file


def bundle(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT", parser=to_path, help="A result.json, or its folder. Repeatable.", show_default=False
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", parser=to_path, help="The zip file to write.", show_default=False)
    ],
) -> None:
    """Pack results and all that they need into one zip file.

    The file has the raw samples, the report, versions and checksums. A folder that is missing is made.
    """
    files = [result_file.find_file(path) for path in results]
    for number, file in enumerate(files):
        with suppress(OSError):  # a missing result is reported when it is read
            if out.samefile(file):
                raise Refused(f"--out {out} would be written over the result; allowed: another file")
        if file in files[:number]:
            raise Refused(f"{file}: named twice; allowed: each result once")
    contents = [_read(file) for file in files]
    packed = bundles.make(contents[0]) if len(contents) == 1 else collection.make(contents)
    output.make_file_folder(f"--out {out}", out.parent)
    typer.echo(f"bundle: {result_file.replace_bytes(out, packed)} ({len(packed):,} bytes)")


def _read(file: Path) -> bytes:
    """Return the bytes of a result file whose verdicts follow from its figures."""
    try:
        data = untrusted.read(file, untrusted.SIZE_LIMIT, result_file.KIND)
        if archive.is_zip(data):
            raise Refused("is a bundle already; allowed: a result file")
        consistency.check_verdicts(result_file.parse(data))
    except Refused as error:
        raise Refused(f"{file}: {error}") from None
    return data
