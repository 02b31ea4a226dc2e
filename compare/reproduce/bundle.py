"""Pack a result with everything that others need to trust it: raw samples, report, versions and checksums.

| member | contents |
|---|---|
| `result.json` | the result file, byte for byte |
| `samples.csv` | every timed block: contender, round, block, seconds per step, whether the round is void |
| `report.txt` | the report of a terminal |
| `requirements.txt` | the installed versions, for pip |
| `bundle.json` | the bundle's format, and the samestep that packed it: version, commit |
| `SHA256SUMS` | the digest of each member, as `sha256sum --check` reads them |
"""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import cast

from rich.console import Console

from compare import __version__
from compare.base import untrusted
from compare.base.errors import make_printable
from compare.base.interface import Refused
from compare.base.typed_json import Json
from compare.base.untrusted import SHORT, SIZE_LIMIT
from compare.machine import environment
from compare.report import terminal
from compare.reproduce import archive, authorship
from compare.reproduce.authorship import Writer
from compare.results import result_file
from compare.results.model import Result

FORMAT = 1
RESULT, ABOUT, SUMS = result_file.FILE_NAME, "bundle.json", "SHA256SUMS"
REPORT = "report.txt"

_WIDTH = 100
_SHORT_LIMIT = 4096  # bytes of the two members that are a few lines
_PACKAGE, _VERSION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"), re.compile(r"[A-Za-z0-9.+!_-]+")
_SUM = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[A-Za-z0-9_.]+)")


def write_samples(result: Result) -> str:
    """Return all timed blocks or requests as comma-separated values, with the result's own numbers.

    Raises:
        Refused: for more than `SIZE_LIMIT` bytes. Long names can turn a small result into so many.
    """
    stream, void = io.StringIO(), result.void_rounds
    table = csv.writer(stream, lineterminator="\n")
    has_sizes = result.spec.batch_sizes is not None
    table.writerow((*("contender", "round", "block", "seconds_per_step", "void"), *["batch_size"] * has_sizes))
    for contender in result.contenders:
        for series in contender.list_series():
            size = [series.batch_size] * has_sizes
            for number, blocks in enumerate(series.samples, start=1):
                if stream.tell() > SIZE_LIMIT:
                    raise Refused(f"samples.csv would have more than {SIZE_LIMIT:,} bytes; allowed: at most that")
                for index, seconds in enumerate(blocks, start=1):
                    table.writerow((contender.name, number, index, repr(seconds), int(number in void), *size))
    return stream.getvalue()


def write_report(result: Result) -> str:
    """Return the terminal's report, independent of this terminal and its variables."""
    stream = io.StringIO()
    terminal.render(result, Console(file=stream, width=_WIDTH, color_system=None, legacy_windows=False, _environ={}))
    return stream.getvalue()


def write_requirements(result: Result) -> str:
    """Return the packages of the environment, pinned for pip. Names that are no package names are left out."""
    facts = result.environment.extra
    listed = facts.get("packages")
    packages: Mapping[str, Json] = listed if isinstance(listed, dict) else {}
    pinned = [
        f"{name}=={version}\n"
        for name, version in sorted(packages.items())
        if isinstance(version, str) and _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version)
    ]
    machine = " on ".join(str(facts.get(key)) for key in ("python", "platform"))
    return "".join([f"# Python {make_printable(machine)}\n", *pinned])


DERIVED: Mapping[str, Callable[[Result], str]] = {
    "samples.csv": write_samples,
    REPORT: write_report,
    "requirements.txt": write_requirements,
}
"""The members that follow from the result alone: a file name and the function that writes its text.

Each samestep chooses the words of its report. A change of another member needs another `FORMAT`.
"""

MEMBERS = frozenset({RESULT, ABOUT, SUMS, *DERIVED})


def make(data: bytes) -> bytes:
    """Return the bundle of a result file's bytes.

    Raises:
        Refused: the bytes are no valid result (`compare.results.result_file.parse`).
    """
    members = {RESULT: data, ABOUT: describe_packer(), **derive(result_file.parse(data))}
    return archive.pack({**members, SUMS: write_sums(members)})


def read_result(data: bytes) -> Result:
    """Return the result in a bundle.

    Raises:
        Refused: the bytes are no bundle (`read_members`), a digest is wrong, or the result is not valid.
    """
    members = read_members(data)
    sums = read_sums(members[SUMS])
    if sums.get(RESULT) != digest(members[RESULT]):
        raise Refused(f"{RESULT} does not have the digest in {SUMS}; allowed: a whole bundle")
    return parse_result(members)


def read_members(data: bytes) -> dict[str, bytes]:
    """Return all members of a bundle.

    Raises:
        Refused: the bytes are no bundle (`compare.reproduce.archive.unpack`), or a member is missing.
    """
    members = archive.unpack(data, MEMBERS)
    if missing := sorted(MEMBERS - members.keys()):
        raise Refused(f"lacks {', '.join(missing)}; allowed: a whole bundle")
    return members


def parse_result(members: Mapping[str, bytes]) -> Result:
    """Return the result of a bundle's members.

    Raises:
        Refused: the result is not valid (`compare.results.result_file.parse`).
    """
    try:
        return result_file.parse(members[RESULT])
    except Refused as error:
        raise Refused(f"{RESULT} {error}") from None


def derive(result: Result) -> dict[str, bytes]:
    """Return the members that follow from a result."""
    return {name: write(result).encode("utf-8") for name, write in DERIVED.items()}


def write_sums(members: Mapping[str, bytes]) -> bytes:
    """Return the manifest of members: a SHA-256 digest and a name in each line."""
    return "".join(f"{digest(members[name])}  {name}\n" for name in sorted(members)).encode("ascii")


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_sums(data: bytes) -> dict[str, str]:
    """Return the digests of a manifest by name.

    Raises:
        Refused: for anything that `write_sums` would not write.
    """
    _check_short(SUMS, data)
    digests: dict[str, str] = {}
    for number, line in enumerate(data.decode("ascii", "replace").splitlines(), start=1):
        match = _SUM.fullmatch(line)
        if match is None or match["name"] in digests or match["name"] not in MEMBERS - {SUMS}:
            raise Refused(f"{SUMS}, line {number}, is {SHORT.repr(line)}; allowed: a digest and a member, once")
        digests[match["name"]] = match["digest"]
    return digests


def read_packer(data: bytes) -> Writer:
    """Return the samestep that packed a bundle, from its `bundle.json`.

    Raises:
        Refused: the data are no such object, or have another format.
    """
    _check_short(ABOUT, data)
    about = untrusted.parse(data)
    values = cast("dict[str, Json]", about) if isinstance(about, dict) else {}
    number, version = values.get("format"), values.get("samestep")
    if type(number) is not int or number < 1 or not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise Refused(f"{ABOUT} is {SHORT.repr(about)}; allowed: a format and the version of samestep")
    if number > FORMAT:
        formats = f"format {SHORT.repr(number)}; this one reads up to {FORMAT}"
        raise Refused(f"was packed by a newer samestep ({formats}): update samestep")
    return authorship.read_writer(version, values.get("git", {}))


def _check_short(name: str, data: bytes) -> None:
    if len(data) > _SHORT_LIMIT:
        raise Refused(f"{name} has {len(data):,} bytes; allowed: at most {_SHORT_LIMIT:,}")


def describe_packer() -> bytes:
    """Return the member `bundle.json`: the format, and this samestep."""
    about = {"format": FORMAT, "samestep": __version__, "git": environment.describe_checkout()}
    return (json.dumps(about) + "\n").encode("ascii")
