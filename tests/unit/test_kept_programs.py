"""The folder of compiled programs that are kept from run to run, and what stands in for it."""

import os
import stat
from pathlib import Path

import pytest

from compare.base.interface import Refused
from compare.store import private_folder


def test_programs_are_kept_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert private_folder.find_programs(tmp_path / "own") == tmp_path / "cache" / "samestep" / "programs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert private_folder.find_programs(tmp_path / "own") == tmp_path / ".cache" / "samestep" / "programs"
    assert (tmp_path / ".cache" / "samestep" / "programs").is_dir()


@pytest.mark.parametrize("home", ["file", "/proc/nowhere"])
def test_where_there_can_be_no_such_folder_a_run_has_its_own(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / home))
    assert private_folder.find_programs(tmp_path / "own") == tmp_path / "own"


def test_a_folder_that_the_user_names_is_refused_if_it_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Refused, match=r"--store .*/file: cannot be made: Not a directory; allowed: a folder you may"):
        private_folder.find_programs(tmp_path / "own", tmp_path / "file")


def test_the_folder_and_those_above_it_that_are_made_are_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = private_folder.find_programs(tmp_path / "own")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent, tmp_path / "cache")] == [0o700] * 3
    folder.chmod(0o755)
    assert stat.S_IMODE(private_folder.find_programs(tmp_path / "own").stat().st_mode) == 0o700


def test_a_relative_name_of_the_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert private_folder.find_programs(tmp_path / "own") == tmp_path / "home" / ".cache" / "samestep" / "programs"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("shared", ["programs", ".", ".."])
def test_a_folder_that_others_can_change_is_refused_by_name(
    shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = private_folder.find_programs(tmp_path / "own").parent / shared
    folder.chmod(0o777)
    with pytest.raises(Refused) as refusal:
        private_folder.find_programs(tmp_path / "own")
    assert f"{folder.resolve()} can be written to by other users" in str(refusal.value)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = private_folder.find_programs(tmp_path / "own")
    os.chown(folder, 65534, -1)
    with pytest.raises(Refused, match="programs belongs to another user"):
        private_folder.find_programs(tmp_path / "own")


def test_a_link_to_another_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = private_folder.find_programs(tmp_path / "own")
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="is a link"):
        private_folder.find_programs(tmp_path / "own")
