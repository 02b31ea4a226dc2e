"""Hostile archives: refused by name before anything is decompressed, extracted or shown."""

import io
import stat
import struct
import zipfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.base.interface import Refused
from compare.base.untrusted import SIZE_LIMIT
from compare.reproduce import archive

ALLOWED = ("result.json", "report.txt")
MEMBERS = {"result.json": b'{"a": 1}' * 50, "report.txt": b"fine\n"}
GOOD = archive.pack(MEMBERS)


def zipped(*entries: tuple[str, bytes, dict[str, Any]], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive of (name, content, attributes of its ZipInfo)."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as made:
        for name, content, changes in entries:
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            for key, value in changes.items():
                setattr(info, key, value)
            made.writestr(info, content)
    return stream.getvalue()


def patched(data: bytes, offset: int, form: str, value: int) -> bytes:
    """Return an archive with a field of its first directory entry overwritten."""
    place = data.index(b"PK\x01\x02") + offset
    return data[:place] + struct.pack(form, value) + data[place + struct.calcsize(form) :]


def patched_twice(data: bytes, offset: int, form: str, value: int) -> bytes:
    """Return an archive with a field overwritten in its first directory entry and in the header of the member."""
    changed = patched(data, offset, form, value)
    place = offset - 2  # a directory entry begins with one more version
    return changed[:place] + struct.pack(form, value) + changed[place + struct.calcsize(form) :]


def in_header(data: bytes, offset: int, form: str, value: int) -> bytes:
    """Return an archive with a field overwritten in the header of its first member."""
    return data[:offset] + struct.pack(form, value) + data[offset + struct.calcsize(form) :]


def hiding(data: bytes) -> bytes:
    """Return an archive with bytes between its first member and its directory."""
    place, hidden = data.index(b"PK\x01\x02"), b"PK\x03\x04 and more"
    start = struct.unpack("<L", data[-6:-2])[0] + len(hidden)
    return data[:place] + hidden + data[place:-6] + struct.pack("<LH", start, 0)


def bomb(size: int) -> bytes:
    return zipped(("result.json", b"\0" * size, {}), method=zipfile.ZIP_DEFLATED)


ONE = zipped(("result.json", b"x" * 100, {}))
LINK = {"external_attr": (stat.S_IFLNK | 0o777) << 16, "create_system": 3}
PIPE = {"external_attr": (stat.S_IFIFO | 0o644) << 16, "create_system": 3}
HOSTILE = {
    "path traversal": (
        zipped(("../result.json", b"x", {})),
        r"holds '\.\./result\.json'; allowed: report\.txt, result",
    ),
    "deep traversal": (zipped(("a/../../result.json", b"x", {})), r"holds 'a/\.\./\.\./result\.json'"),
    "absolute path": (zipped(("/etc/passwd", b"x", {})), "holds '/etc/passwd'"),
    "windows path": (zipped(("C:\\result.json", b"x", {})), r"holds 'C:\\\\result\.json'"),
    "folder": (zipped(("result.json/", b"", {})), r"holds 'result\.json/'"),
    "other case": (zipped(("RESULT.JSON", b"x", {})), "holds 'RESULT.JSON'"),
    "unexpected": (zipped(("run.sh", b"rm -rf /", {})), r"holds 'run\.sh'"),
    "escape sequence": (zipped(("\x1b[2Jresult.json", b"x", {})), r"holds '\\x1b\[2Jresult\.json'"),
    "nul in the name": (ONE.replace(b"result.json", b"report\0json"), r"holds 'report\\x00json'"),
    "nul behind the name": (
        zipped(("result.json?", b"x", {})).replace(b"result.json?", b"result.json\0"),
        r"holds 'result\.json\\x00'",
    ),
    "link": (zipped(("result.json", b"/etc/passwd", LINK)), "result.json in it is a link, a folder or a device"),
    "pipe": (zipped(("result.json", b"x", PIPE)), "result.json in it is a link, a folder or a device"),
    "encrypted": (patched(ONE, 8, "<H", 1), "result.json is encrypted"),
    "strongly encrypted": (patched(ONE, 8, "<H", 0x41), "result.json is encrypted"),
    "bzip2": (zipped(("result.json", b"x" * 99, {}), method=zipfile.ZIP_BZIP2), "compressed by method 12"),
    "lzma": (zipped(("result.json", b"x" * 99, {}), method=zipfile.ZIP_LZMA), "compressed by method 14"),
    "unknown method": (patched(ONE, 10, "<H", 99), "compressed by method 99"),
    "bomb": (bomb(2**24), "result.json would become more than 200 times as large"),
    "large member": (
        patched(ONE, 24, "<L", SIZE_LIMIT + 1),
        "would become 67,108,865 bytes; allowed: at most 67,108,864",
    ),
    "longer than the whole": (patched(ONE, 20, "<L", 10**6), "result.json is longer than the whole file"),
    "longer than it says": (patched_twice(bomb(60_000), 24, "<L", 10), "is damaged: .*CRC"),
    "shorter than it says": (
        patched_twice(bomb(60_000), 24, "<L", 60_001),
        "result.json does not have its stated length|damaged",
    ),
    "another checksum": (patched_twice(ONE, 16, "<L", 7), "is damaged: .*CRC"),
    "another checksum in the directory": (patched(ONE, 16, "<L", 7), "describes result.json in two ways"),
    "another size in the header": (in_header(ONE, 22, "<L", 99), "describes result.json in two ways"),
    "another method in the header": (in_header(ONE, 8, "<H", 8), "describes result.json in two ways"),
    "written as a stream": (in_header(ONE, 6, "<H", 8), "describes result.json in two ways"),
    "two lengths of one content": (patched_twice(ONE, 24, "<L", 99), "result.json in another place"),
    "a hidden member": (hiding(ONE), "holds bytes of no member"),
    "a member from elsewhere": (patched(ONE, 42, "<L", 1), "result.json in another place"),
    "a longer extra field": (in_header(ONE, 28, "<H", 9), "holds bytes of no member"),
    "too few members": (GOOD[:-14] + struct.pack("<HH", 1, 1) + GOOD[-10:], "counts 1 members and lists 2"),
    "too many members": (GOOD[:-14] + struct.pack("<HH", 2, 3) + GOOD[-10:], "counts 3 members and lists 2"),
    "newer version of zip": (patched(ONE, 6, "<H", 99), "is a zip file of an unsupported kind"),
    "another name inside": (ONE.replace(b"result.json", b"report.txt\0", 1), "describes result.json in two ways"),
    "data in front": (b"#!/bin/sh\nrm -rf /\n" + ONE, "is not a zip file from its first byte on"),
    "a file in front": (
        b"PK\x03\x04" + b"\0" * 26 + ONE,
        "directory of its members that is too long or not in its place",
    ),
    "data behind": (ONE + b"more", "does not end as a zip file"),
    "comment": (ONE[:-2] + b"\x04\0more", "does not end as a zip file"),
    "comment that is missing": (ONE[:-2] + b"\x04\0", "does not end as a zip file"),
    "empty": (b"", "is not a zip file"),
    "a json file": (b'{"schema_version": 1}', "is not a zip file"),
    "nothing but an end": (b"PK\x05\x06" + b"\0" * 18, "is not a zip file"),
    "truncated": (GOOD[:-1], "does not end as a zip file"),
    "half": (GOOD[: len(GOOD) // 2], "does not end as a zip file"),
    "directory elsewhere": (ONE[:-10] + struct.pack("<LLH", 20, 99, 0), "not in its place"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused(kind: str) -> None:
    data, message = HOSTILE[kind]
    with pytest.raises(Refused, match=message) as refused:
        archive.unpack(data, ALLOWED)
    assert len(str(refused.value)) < 300


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_is_refused() -> None:
    twice = zipped(("result.json", b"good", {}), ("result.json", b"evil", {}))
    with pytest.raises(Refused, match=r"holds result\.json twice; allowed: once"):
        archive.unpack(twice, ALLOWED)


def test_more_members_than_there_can_be_are_refused() -> None:
    many = zipped(*((f"{number}", b"", {}) for number in range(3)))
    with pytest.raises(Refused, match="holds 3 members; allowed: at most 2"):
        archive.unpack(many, ALLOWED)
    directory = zipped(*((f"{number:0200}", b"", {}) for number in range(400)))
    with pytest.raises(Refused, match="a directory of its members that is too long"):
        archive.unpack(directory, ALLOWED)


def test_all_members_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "TOTAL_LIMIT", 100)
    with pytest.raises(Refused, match="would become more than 100 bytes"):
        archive.unpack(GOOD, ALLOWED)


def test_nothing_is_decompressed_before_all_members_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    last = zipped(("result.json", b"x", {}), ("../x", b"x", {}))
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_, **__: pytest.fail("something was decompressed"))
    with pytest.raises(Refused, match=r"holds '\.\./x'"):
        archive.unpack(last, ALLOWED)


def test_an_archive_comes_back_and_is_the_same_each_time() -> None:
    assert archive.unpack(GOOD, ALLOWED) == MEMBERS
    assert archive.pack(dict(reversed(MEMBERS.items()))) == GOOD
    with zipfile.ZipFile(io.BytesIO(GOOD)) as made:
        assert [info.filename for info in made.infolist()] == ["report.txt", "result.json"]
        assert {info.date_time for info in made.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in made.infolist()} == {stat.S_IFREG | 0o644}


def test_one_that_somebody_packed_anew_with_deflate_is_read() -> None:
    entries = [(name, content, {}) for name, content in MEMBERS.items()]
    assert archive.unpack(zipped(*entries, method=zipfile.ZIP_DEFLATED), ALLOWED) == MEMBERS


DEFLATED = zipped(*((name, content, {}) for name, content in MEMBERS.items()), method=zipfile.ZIP_DEFLATED)


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from((GOOD, DEFLATED)),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    st.integers(0, 40),
    st.binary(max_size=8),
)
def test_a_damaged_archive_gives_its_members_or_is_refused(
    data: bytes, flips: list[tuple[int, int]], cut: int, added: bytes
) -> None:
    damaged = bytearray(data)
    for place, mask in flips:
        damaged[place % len(damaged)] ^= mask
    del damaged[len(damaged) - cut :]
    try:
        found = archive.unpack(bytes(damaged) + added, ALLOWED)
    except Refused:
        return
    assert found.items() <= MEMBERS.items()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(noise: bytes) -> None:
    for data in (noise, b"PK\x03\x04" + noise, GOOD[:60] + noise + GOOD[-22:]):
        with pytest.raises(Refused):
            archive.unpack(data, ALLOWED)
