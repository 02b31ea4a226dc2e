"""Pack several results into one zip file, each as a bundle of its own, with the pages of their report.

| member | contents |
|---|---|
| `result-001.zip`, ... | a bundle for each result (`compare.reproduce.bundle`) |
| `campaign.json`, `report.html`, `report.tex`, `report.md`, `summary.*` | the report, if there is one |
| `bundle.json` | the format, and the samestep that packed it |
| `SHA256SUMS` | the digest of each member |
"""

import re
from collections.abc import Mapping, Sequence

from compare.base.interface import Refused
from compare.base.untrusted import SHORT, SIZE_LIMIT
from compare.reproduce import archive, bundle

MOST_RESULTS = 999
EXTRAS = ("campaign.json", "report.html", "report.md", "report.tex", "summary.pdf", "summary.png", "summary.svg")
TOTAL_LIMIT = 16 * SIZE_LIMIT
"""Most bytes of all members together, and of the file."""

_RESULTS = tuple(f"result-{number:03}.zip" for number in range(1, MOST_RESULTS + 1))
_ALLOWED = frozenset({*_RESULTS, *EXTRAS, bundle.ABOUT, bundle.SUMS})
_SUM = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[A-Za-z0-9_.-]+)")
_END_BYTES = 2**17  # the directory of the members lies here


def make(results: Sequence[bytes], extras: Mapping[str, bytes] | None = None) -> bytes:
    """Return the collection of the bytes of result files.

    Args:
        results: result files or bundles of one result each.
        extras: further members, by a name of `EXTRAS`.

    Raises:
        Refused: too many results, or one is not valid.
    """
    if len(results) > MOST_RESULTS:
        raise Refused(f"{len(results):,} results; allowed: {MOST_RESULTS}")
    packed = [data if archive.is_zip(data) else bundle.make(data) for data in results]
    members = {
        **dict(zip(_RESULTS, packed, strict=False)),
        **(extras or {}),
        bundle.ABOUT: bundle.describe_packer(),
    }
    return archive.pack({**members, bundle.SUMS: bundle.write_sums(members)})


def is_collection(data: bytes) -> bool:
    """Tell whether a zip file holds bundles."""
    return archive.is_zip(data) and _RESULTS[0].encode() in data[-_END_BYTES:]


def read_bundles(data: bytes) -> list[bytes]:
    """Return the bundles of a collection in their order, after a check of every digest.

    Raises:
        Refused: the bytes are no collection, or a digest is wrong.
    """
    members = archive.unpack(data, _ALLOWED, total_limit=TOTAL_LIMIT)
    if bundle.SUMS not in members or bundle.ABOUT not in members:
        raise Refused(f"lacks {bundle.SUMS} or {bundle.ABOUT}; allowed: a whole bundle")
    bundle.read_packer(members[bundle.ABOUT])
    digests = dict[str, str]()
    for number, line in enumerate(members[bundle.SUMS].decode("ascii", "replace").splitlines(), start=1):
        match = _SUM.fullmatch(line)
        if match is None:
            raise Refused(f"{bundle.SUMS}, line {number}, is {SHORT.repr(line)}; allowed: a digest and a member")
        digests[match["name"]] = match["digest"]
    for name, content in members.items():
        if name != bundle.SUMS and digests.get(name) != bundle.digest(content):
            raise Refused(f"{name} does not have the digest in {bundle.SUMS}; allowed: a whole bundle")
    if missing := sorted(digests.keys() - members.keys()):
        raise Refused(f"lacks {missing[0]}; allowed: a whole bundle")
    return [members[name] for name in _RESULTS if name in members]
