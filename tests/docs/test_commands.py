"""Every command of the README, the tutorials and the guides works. Scripted backends stand in for the frameworks."""

import re
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import synthetic_mnist
from compare.settings import backends
from tests.docs import pages
from tests.fakebackend import BACKENDS
from tests.fakebackend.plans import ROOT
from tests.unit import programs, stored
from tests.unit.programs import Program

# Each keeps a run of a scripted backend short and does not change what the command means.
SMALL = {
    "compare": {"--rounds": "2", "--epochs": "1"},
    "agree": {"--epochs": "1", "--seeds": "2"},
    "scale": {"--rounds": "2", "--epochs": "1"},
    "reproduce": {"--rounds": "2"},
    "ladder": {"--rounds": "2", "--epochs": "1", "--rungs": "compiled,larger-batch"},
}
MANY_ROUNDS = ("--quick", "--paper")
CLAIM_FAILED, REFUSED, STARTED = 1, 2, 77


class Started(SystemExit):
    """A command was accepted, and would start its first child now."""


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Generator[Program]:
    with programs.opened(tmp_path, capfd, monkeypatch) as program:
        monkeypatch.setitem(backends.BUILT_IN, "torch", BACKENDS["fake"])
        monkeypatch.setitem(backends.BUILT_IN, "jax", BACKENDS["other"])
        (program.folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        shutil.copytree(ROOT / "examples", program.folder / "examples")
        yield program


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", *pages.TUTORIALS, *pages.GUIDES])
def test_every_command_of_a_page_works(program: Program, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "README.md":
        for name in ("first", "main", "branch"):  # the folders that its table names
            shutil.copytree(stored.path("faster").parent, name)
    commit_everything(program.folder)
    for words, needs_gpu in pages.commands(page):
        # No later command of a guide uses a result that has no name.
        is_whole = page not in pages.GUIDES or "--out" in words
        check(program, words, needs_gpu, is_whole, monkeypatch)
    for words, _ in pages.table_commands(page) if page == "README.md" else ():
        check(program, words, False, False, monkeypatch)


@pytest.mark.usefixtures("program")
def test_the_python_of_own_workload_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise Started(STARTED)

    monkeypatch.setattr("compare.execution.launcher.Child", start)
    with pytest.raises(Started):
        exec(pages.blocks("docs/howto/own-workload.md", "python")[0], {})  # the page is this repository's own


def commit_everything(folder: Path) -> None:
    """Make the folder a repository with one commit, as the reader's clone has one."""
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def check(program: Program, words: list[str], needs_gpu: bool, is_whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one command. One that is not run whole ends at its first child."""
    match words:
        case ["make", target, *_]:
            assert re.search(rf"^{target}: ", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case [".", activate]:
            assert activate == ".venv/bin/activate"
        case ["mkdir", folder]:
            Path(folder).mkdir(exist_ok=True)
        case ["python", "-m", "pytest", folder, "--benchmark"]:
            assert list((ROOT / folder).glob("test_*.py"))
        case ["samestep", command, *rest]:
            if "MNIST" in rest:
                synthetic_mnist.write(Path("MNIST"))
            needs_frameworks = (
                "--jax" in rest or "--torch" in rest or command in ("selftest", "fit", "explain", "tune", "ladder")
            )
            if needs_frameworks or (command in SMALL and not is_whole):
                accept(program, command, rest, monkeypatch)
            else:
                run(program, command, rest, needs_gpu)
        case _:
            pytest.fail(f"no check for {words}")


def run(program: Program, command: str, rest: list[str], needs_gpu: bool) -> None:
    words = [word for word in rest if command not in SMALL or word not in MANY_ROUNDS]
    if "--seeds" in words:
        words[words.index("--seeds") + 1] = SMALL[command]["--seeds"]
    small = [f"{name}={value}" for name, value in SMALL.get(command, {}).items() if name not in words]
    code, out, error = program.run(command, *words, *small)
    if needs_gpu:
        assert (code, "cuda" in error) == (REFUSED, True), error
    else:
        assert code in (0, CLAIM_FAILED), f"{command} {rest}: {out}{error}"
        assert "Traceback" not in error


def accept(program: Program, command: str, rest: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a command is accepted as far as its first child, which no scripted backend can stand in for."""

    def start(*_: Any, **__: Any) -> None:
        raise Started(STARTED)

    with monkeypatch.context() as patched:
        patched.setattr("compare.execution.launcher.Child", start)
        code, out, error = program.run(command, *rest)
    assert code == STARTED, f"{command} {rest}: {out}{error}"
