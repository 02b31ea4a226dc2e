"""The folder of compiled programs that are kept from run to run, and what stands in for it."""

from pathlib import Path

import pytest

from compare.machine import variables


def test_programs_are_kept_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert variables.find_cache_folder(tmp_path / "own") == tmp_path / "cache" / "samestep" / "programs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert variables.find_cache_folder(tmp_path / "own") == tmp_path / ".cache" / "samestep" / "programs"
    assert (tmp_path / ".cache" / "samestep" / "programs").is_dir()


@pytest.mark.parametrize("home", ["file", "/proc/nowhere"])
def test_where_there_can_be_no_such_folder_a_run_has_its_own(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / home))
    assert variables.find_cache_folder(tmp_path / "own") == tmp_path / "own"
