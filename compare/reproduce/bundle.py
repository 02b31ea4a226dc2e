"""A result packed with what others need to trust it: raw samples, report, versions and checksums.

| member | holds |
|---|---|
| `result.json` | the result file, byte for byte |
| `samples.csv` | every timed block: contender, round, block, seconds per step, whether the round is void |
| `report.txt` | the report of a terminal |
| `requirements.txt` | the versions that it was made with, for pip |
| `bundle.json` | the bundle's format, and the samestep that packed it: version, commit |
| `SHA256SUMS` | the digest of each of these, as `sha256sum --check` reads them |
"""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from rich.console import Console

from compare import __version__
from compare.base import untrusted
from compare.base.interface import Refused
from compare.base.untrusted import SHORT, SIZE_LIMIT
from compare.machine import environment
from compare.report import terminal
from compare.report.sentences import printable
from compare.reproduce import archive, authorship
from compare.reproduce.authorship import Writer
from compare.results import model, result_file

FORMAT = 1
RESULT, ABOUT, SUMS = result_file.FILE_NAME, "bundle.json", "SHA256SUMS"
REPORT = "report.txt"

_WIDTH = 100
_SHORT_LIMIT = 4096  # bytes of the two members that are a few lines
_PACKAGE, _VERSION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"), re.compile(r"[A-Za-z0-9.+!_-]+")
_SUM = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[A-Za-z0-9_.]+)")

Object = Mapping[str, Any]


def samples(result: Object) -> str:
    """Return all timed blocks as comma-separated values, numbers as the result has them.

    Raises:
        Refused: for more than `SIZE_LIMIT` bytes, which a result of fewer may ask for by long names.
    """
    stream, void = io.StringIO(), {each["round"] for each in result["voided"]}
    table = csv.writer(stream, lineterminator="\n")
    table.writerow(("contender", "round", "block", "seconds_per_step", "void"))
    for contender in result["contenders"]:
        step: Object = contender["step_seconds"] or {"samples": []}
        for number, blocks in enumerate(step["samples"], start=1):
            if stream.tell() > SIZE_LIMIT:
                raise Refused(f"samples.csv would have more than {SIZE_LIMIT:,} bytes; allowed: at most that")
            for index, seconds in enumerate(blocks, start=1):
                table.writerow((contender["name"], number, index, repr(seconds), int(number in void)))
    return stream.getvalue()


def report(result: Object) -> str:
    """Return the terminal's report, the same whatever terminal this is and its variables say."""
    stream = io.StringIO()
    terminal.render(
        model.from_json(result),
        Console(file=stream, width=_WIDTH, color_system=None, legacy_windows=False, _environ={}),
    )
    return stream.getvalue()


def requirements(result: Object) -> str:
    """Return the packages that the environment lists, pinned as pip reads them; what is no such name is left out."""
    environment = result["environment"]
    packages: Object = environment["packages"] if isinstance(environment.get("packages"), dict) else {}
    pinned = [
        f"{name}=={version}\n"
        for name, version in sorted(packages.items())
        if isinstance(version, str) and _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version)
    ]
    machine = " on ".join(str(environment.get(key)) for key in ("python", "platform"))
    return "".join([f"# Python {printable(machine)}\n", *pinned])


RENDERED: Mapping[str, Callable[[Object], str]] = {
    "samples.csv": samples,
    REPORT: report,
    "requirements.txt": requirements,
}
"""What is made of the result alone, and can be made again: a file name and the function that gives its text.

The report's words are each samestep's own; another form of the others is another `FORMAT`.
"""

MEMBERS = frozenset({RESULT, ABOUT, SUMS, *RENDERED})


def make(data: bytes) -> bytes:
    """Return the bundle of a result file's bytes.

    Raises:
        Refused: for bytes that are no valid result (`compare.results.result_file.parse`).
    """
    members = {RESULT: data, ABOUT: _about(), **rendered(model.to_json(result_file.parse(data)))}
    return archive.pack({**members, SUMS: sums(members)})


def rendered(result: Object) -> dict[str, bytes]:
    """Return the members that are made of a result."""
    return {name: render(result).encode("utf-8") for name, render in RENDERED.items()}


def sums(members: Mapping[str, bytes]) -> bytes:
    """Return the manifest of members: a SHA-256 digest and a name in each line."""
    return "".join(f"{digest(members[name])}  {name}\n" for name in sorted(members)).encode("ascii")


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def manifest(data: bytes) -> dict[str, str]:
    """Return the digests of a manifest by name.

    Raises:
        Refused: for anything that `sums` would not write.
    """
    _check_short(SUMS, data)
    found: dict[str, str] = {}
    for number, line in enumerate(data.decode("ascii", "replace").splitlines(), start=1):
        match = _SUM.fullmatch(line)
        if match is None or match["name"] in found or match["name"] not in MEMBERS - {SUMS}:
            raise Refused(f"{SUMS}, line {number}, is {SHORT.repr(line)}; allowed: a digest and a member, once")
        found[match["name"]] = match["digest"]
    return found


def packed_by(data: bytes) -> Writer:
    """Return the samestep that packed a bundle, as its `bundle.json` tells; the commit is `unknown` in older ones.

    Raises:
        Refused: for what is no such object, or is of a newer format.
    """
    _check_short(ABOUT, data)
    about = untrusted.parse(data)
    values: dict[str, Any] = cast("dict[str, Any]", about) if isinstance(about, dict) else {}
    number, version = values.get("format"), values.get("samestep")
    if type(number) is not int or not isinstance(version, str) or not _VERSION.fullmatch(version) or number < 1:
        raise Refused(f"{ABOUT} is {SHORT.repr(about)}; allowed: a format and the version of samestep")
    if number > FORMAT:
        told = f"format {SHORT.repr(number)}; this one reads up to {FORMAT}"
        raise Refused(f"was packed by a newer samestep ({told}): update samestep")
    return authorship.told(version, values.get("git", "not told"))


def _check_short(name: str, data: bytes) -> None:
    if len(data) > _SHORT_LIMIT:
        raise Refused(f"{name} has {len(data):,} bytes; allowed: at most {_SHORT_LIMIT:,}")


def _about() -> bytes:
    about = {"format": FORMAT, "samestep": __version__, "git": environment.describe_checkout()}
    return (json.dumps(about) + "\n").encode("ascii")
