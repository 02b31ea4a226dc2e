import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compare import files
from compare.interface import Refused


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
