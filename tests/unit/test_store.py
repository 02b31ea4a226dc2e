"""The store of what is kept from run to run: whole entries under a folder that nobody else can change."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compare.base.interface import Refused
from compare.store import entries, private_folder
from compare.store.entries import Store, compute_key

FACTS = {"workload": "digits-cnn", "seeds": [0, 1], "versions": {"torch": "2.11"}, "knobs": {"compile": True}}


def writing(text: str) -> Any:
    return lambda folder: (folder / "value.txt").write_text(text)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache" / "samestep")


def test_an_entry_is_found_again_with_its_files_and_its_date(store: Store):
    added = store.add("certificates", FACTS, writing("pass"))
    found = Store(store.root).find("certificates", FACTS)
    assert found is not None
    assert found == added
    assert (found.folder / "value.txt").read_text() == "pass"
    assert found.key == compute_key(FACTS)
    assert found.created.endswith("+00:00")


@pytest.mark.parametrize(
    "change", [{"workload": "mnist-cnn"}, {"seeds": [0, 2]}, {"versions": {"torch": "2.12"}}, {"knobs": {}}, {"new": 1}]
)
def test_any_other_fact_is_a_miss(store: Store, change: dict[str, Any]):
    store.add("certificates", FACTS, writing("pass"))
    assert store.find("certificates", FACTS | change) is None
    assert store.find("programs", FACTS) is None


def test_an_entry_appears_whole_or_not_at_all(store: Store):
    def fail(folder: Path) -> None:
        (folder / "value.txt").write_text("half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        store.add("certificates", FACTS, fail)
    assert store.find("certificates", FACTS) is None
    assert not [path for path in store.root.rglob("*") if path.is_file()]


def test_runs_that_add_the_same_entry_at_once_keep_one(store: Store):
    with ThreadPoolExecutor(8) as pool:
        made = list(
            pool.map(lambda number: Store(store.root).add("certificates", FACTS, writing(str(number))), range(32))
        )
    assert len({entry.key for entry in made}) == 1
    assert len(list(store.entries())) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": 1}', json.dumps({"kind": "certificates", "key": "0" * 64})])
def test_a_broken_entry_is_no_entry_and_is_made_again(store: Store, text: str):
    entry = store.add("certificates", FACTS, writing("old"))
    (entry.folder / "entry.json").write_text(text)
    assert store.find("certificates", FACTS) is None
    again = store.add("certificates", FACTS, writing("new"))
    assert (again.folder / "value.txt").read_text() == "new"


def test_an_entry_whose_facts_were_changed_is_no_entry(store: Store):
    entry = store.add("certificates", FACTS, writing("pass"))
    about = json.loads((entry.folder / "entry.json").read_text())
    about["facts"]["workload"] = "mnist-cnn"
    (entry.folder / "entry.json").write_text(json.dumps(about))
    assert store.find("certificates", FACTS) is None


def test_what_was_not_used_for_longest_makes_room(store: Store, monkeypatch: pytest.MonkeyPatch):
    added = [store.add("certificates", FACTS | {"number": number}, writing("x" * 1000)) for number in range(3)]
    for number, entry in enumerate(added):
        os.utime(entry.folder, (number, number))
    store.find("certificates", FACTS | {"number": 0})
    monkeypatch.setattr(entries, "LARGEST", 3 * added[0].size)
    store.add("certificates", FACTS | {"number": 3}, writing("x"))
    left = {number for number in range(4) if store.find("certificates", FACTS | {"number": number})}
    assert 0 in left
    assert 3 in left
    assert 1 not in left


def test_clearing_deletes_one_kind_or_all(store: Store):
    store.add("certificates", FACTS, writing("a"))
    store.add("cells", FACTS, writing("b"))
    assert store.clear("cells") > 0
    assert [entry.kind for entry in store.entries()] == ["certificates"]
    store.clear()
    assert list(store.entries()) == []


def test_all_folders_are_their_user_s_alone(store: Store):
    entry = store.add("certificates", FACTS, writing("a"))
    for folder in (store.root.parent, store.root, entry.folder.parent, entry.folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_own_folder_that_others_may_read_is_closed(tmp_path: Path):
    folder = tmp_path / "samestep"
    folder.mkdir(mode=0o755)
    private_folder.make(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_folder_that_others_may_write_to_is_refused_by_name(tmp_path: Path, mode: int):
    folder = tmp_path / "samestep"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(Refused, match=f"{folder} can be written to by other users"):
        Store(folder)


def test_a_folder_below_one_that_others_may_write_to_is_refused(tmp_path: Path):
    tmp_path.chmod(0o777)
    with pytest.raises(Refused, match=f"{tmp_path} can be written to"):
        Store(tmp_path / "samestep")
    tmp_path.chmod(0o1777)  # as /tmp: others cannot rename what is ours
    Store(tmp_path / "samestep")


def test_a_home_that_only_the_user_s_own_group_may_write_to_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o775)  # as a umask of 002 makes it
    me = private_folder.pwd.getpwuid(os.getuid())
    alone = private_folder.grp.struct_group(("me", "x", tmp_path.stat().st_gid, []))
    monkeypatch.setattr(private_folder.grp, "getgrgid", lambda group: alone)
    owner = private_folder.pwd.struct_passwd((me.pw_name, "x", me.pw_uid, tmp_path.stat().st_gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(private_folder.pwd, "getpwall", lambda: [owner])
    Store(tmp_path / "samestep")
    shared = private_folder.grp.struct_group(("me", "x", tmp_path.stat().st_gid, ["somebody"]))
    monkeypatch.setattr(private_folder.grp, "getgrgid", lambda group: shared)
    with pytest.raises(Refused, match="can be written to by other users"):
        Store(tmp_path / "samestep")


def test_a_link_is_refused(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "samestep").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="is a link"):
        Store(tmp_path / "samestep")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path):
    folder = tmp_path / "samestep"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(Refused, match="belongs to another user"):
        Store(folder)


@pytest.mark.parametrize("named", ["", "cache", "./cache"])
def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert private_folder.find_default_root() == tmp_path / ".cache" / "samestep"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert private_folder.find_default_root() == tmp_path / "own" / "samestep"


def test_what_a_killed_run_did_not_finish_goes_and_another_runs_stays(store: Store) -> None:
    begins = "import os, sys, time; from pathlib import Path; from compare.store.entries import Store\n"
    waits = (
        "Store(Path(sys.argv[1])).add('cells', {'n': 1}, lambda folder: (print(folder, flush=True), time.sleep(600)))"
    )
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}

    def begin() -> tuple["subprocess.Popen[str]", Path]:
        command = [sys.executable, "-c", begins + waits, str(store.root)]
        process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    (killed, left), (running, used) = begin(), begin()
    killed.kill()
    killed.communicate()
    store.add("cells", {"n": 2}, writing("whole"))
    assert (left.exists(), used.exists()) == (False, True)
    running.kill()
    running.communicate()
    store.clear()
    assert list(store.root.glob("unfinished/*")) == []
