"""`samestep cache`: lists what is kept, and deletes it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compare.store.entries import Store
from tests.unit import programs


@pytest.fixture
def program(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[programs.Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
        monkeypatch.setenv("COLUMNS", "120")
        yield program


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "own" / "samestep")
    store.add("certificates", {"a": 1}, lambda folder: write(folder / "a", 4096), "digits-cnn: torch")
    store.add("revisions", {"commit": 1}, lambda folder: write(folder / "a", 4096), "HEAD of code")
    compiled = store.root / "programs" / "jax"
    compiled.mkdir(parents=True)
    write(compiled / "program", 2**20)
    return store


def write(path: Path, size: int) -> None:
    path.write_bytes(b"x" * size)


def test_the_list_names_kind_what_date_and_size(program: programs.Program, store: Store) -> None:
    entry = next(entry for entry in store.entries() if entry.kind == "certificates")
    code, out, error = program.run("cache", "list")
    assert (code, error) == (0, "")
    line = next(line for line in out.splitlines() if line.startswith("certificates"))
    assert "digits-cnn: torch" in line
    assert entry.created in line
    assert line.endswith("KiB")
    assert "compiled by jax" in out
    assert str(store.root) in out
    assert "compiled by jax" not in program.run("cache", "list", "--kind", "certificates")[1]


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("certificates", {"revisions", "programs"}),
        ("revisions", {"certificates", "programs"}),
        ("programs", {"certificates", "revisions"}),
        (None, set()),
    ],
)
def test_clear_deletes_one_kind_or_all(
    program: programs.Program, store: Store, kind: str | None, left: set[str]
) -> None:
    code, out, _ = program.run("cache", "clear", *(["--kind", kind] if kind else []))
    assert code == 0
    assert out.startswith("deleted ")
    compiled = {"programs"} if (store.root / "programs" / "jax").exists() else set()
    assert {entry.kind for entry in store.entries()} | compiled == left
    if kind is None:
        assert program.run("cache", "list")[1].endswith("empty\n")


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [(["prune"], "list, clear"), (["list", "--kind", "cakes"], "certificates, cells, programs")],
)
def test_unknown_words_are_refused(program: programs.Program, arguments: list[str], allowed: str) -> None:
    code, _, error = program.run("cache", *arguments)
    assert code == 2
    assert f"allowed: {allowed}" in error
