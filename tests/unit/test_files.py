import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compare.base import files
from compare.base.interface import Refused


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_are_written_and_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("before")
    files.write({tmp_path / "old": b"after", tmp_path / "new": b"\x00"})
    assert (tmp_path / "old").read_bytes() == b"after"
    assert (tmp_path / "new").read_bytes() == b"\x00"
    assert _names(tmp_path) == ["new", "old"]


def test_nothing_is_written_where_one_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match=r"cannot write .*folder: it is not a regular file; allowed: the name of a file"):
        files.write({tmp_path / "first": b"1", tmp_path / "folder": b"2"})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="pipe: it is not a regular file"):
        files.write({tmp_path / "first": b"1", tmp_path / "pipe": b"2"})
    (tmp_path / "pipe").unlink()
    with pytest.raises(Refused, match=r"cannot write .*nowhere/second: No such file"):
        files.write({tmp_path / "first": b"1", tmp_path / "nowhere" / "second": b"2"})
    assert _names(tmp_path) == ["folder"]


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_what_was_replaced_comes_back_when_a_later_file_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    (tmp_path / "a").write_text("old a")
    (tmp_path / "c").write_text("old c")
    monkeypatch.setattr(os, "replace", _failing(os.replace, broken))
    with pytest.raises(Refused, match=f"cannot write .*{'abc'[broken - 1]}: Operation not permitted"):
        files.write({tmp_path / name: b"new" for name in "abc"})
    assert _names(tmp_path) == ["a", "c"]
    assert (tmp_path / "a").read_text() == "old a"
    assert (tmp_path / "c").read_text() == "old c"


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write({tmp_path / "a": b"1"})
    assert _names(tmp_path) == []


def _failing(replace: Callable[..., None], broken: int) -> Callable[..., None]:
    calls = 0

    def failing(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == broken:
            raise PermissionError(1, "Operation not permitted")
        replace(source, target)

    return failing


def test_the_file_that_a_link_leads_to_is_written(tmp_path: Path) -> None:
    real, link, further = tmp_path / "folder" / "real", tmp_path / "link", tmp_path / "further"
    real.parent.mkdir()
    real.write_bytes(b"old")
    link.symlink_to("folder/real")
    further.symlink_to(link)
    files.write({further: b"new"})
    assert further.is_symlink()
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    link.unlink()
    link.symlink_to("folder/yet-to-be")
    files.write({link: b"first"})
    assert (tmp_path / "folder" / "yet-to-be").read_bytes() == b"first"
    assert [path.name for path in real.parent.iterdir() if path.suffix == ".tmp"] == []


def test_a_link_of_the_system_is_not_replaced(tmp_path: Path) -> None:
    opened, link = tmp_path / "opened", tmp_path / "link"
    with opened.open("wb") as stream:
        link.symlink_to(f"/proc/self/fd/{stream.fileno()}")
        with pytest.raises(Refused, match=f"cannot write {link}: it is not a regular file"):
            files.write({link: b"new"})
    assert link.is_symlink()
    assert opened.read_bytes() == b""


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(Refused, match="too many links"):
        files.write({one: b"new"})
