"""Where a resource runs out, samestep says so in a sentence and ends with exit code 2 or 3."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakebackend import plans

COMPARE = ["-m", "tests.fakebackend.program", "compare", "fake", "other", "--device", "cpu", "--epochs", "1"]
_INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "compare.cli.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from compare.__main__ import main
main()
"""
_SHORT = """
import os, sys
from compare.cli import app, lists
def describe():
    raise {error}
lists.environment.describe = describe
sys.argv = ["samestep", "env"]
app.main()
"""


def run(folder: Path, arguments: list[str], limit: str = "") -> "subprocess.CompletedProcess[str]":
    variables = os.environ | plans.environment(folder, {})
    command = f"{limit or 'true'}; exec {shlex.join([sys.executable, *arguments])}"
    return subprocess.run(["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["ulimit -f 1", "ulimit -n 6", "ulimit -n 20"])
def test_a_limit_of_the_system_gives_no_traceback(tmp_path: Path, limit: str) -> None:
    done = run(tmp_path, [*COMPARE, "--rounds", "2", "--out", "out"], limit)
    assert done.returncode in (2, 3), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("limit", ["ulimit -v 100000", "ulimit -v 200000", "ulimit -d 100000"])
def test_too_little_memory_is_refused_before_any_library_hangs(tmp_path: Path, limit: str) -> None:
    done = run(tmp_path, ["-m", "compare", "workloads"], limit)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("samestep: cannot start: this process may have only ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("OSError(24, 'Too many open files')", "Too many open files; allowed: a higher limit"),
        ("OSError(27, 'File too large', 'result')", "cannot write result: File too large"),
        ("MemoryError", "memory ran out"),
        ("OSError(12, 'Cannot allocate memory')", "memory ran out"),
        ("BlockingIOError(11, 'Resource temporarily unavailable')", "no more processes"),
        ('RuntimeError("can\'t start new thread")', "no more processes or threads"),
    ],
)
def test_a_resource_that_runs_out_has_a_sentence(tmp_path: Path, error: str, words: str) -> None:
    done = run(tmp_path, ["-c", _SHORT.format(error=error)])
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("samestep: ")
    assert words in done.stderr


SCALE = [
    "-m",
    "tests.fakebackend.program",
    "scale",
    "torch:stock",
    "jax:stock",
    "--workload",
    "digits-cnn",
    "--device",
    "cpu",
]


@pytest.mark.parametrize(
    ("command", "kind", "place"),
    [
        (COMPARE, "folder", "result.json"),
        (COMPARE, "FIFO", "result.json"),
        (SCALE, "folder", "result.json"),
        (SCALE, "FIFO", "scaling.svg"),
        (SCALE, "folder", "devices-2/result.json"),
    ],
)
def test_a_result_that_is_no_file_is_refused_before_the_run(
    tmp_path: Path, command: list[str], kind: str, place: str
) -> None:
    path = tmp_path / "out" / place
    path.parent.mkdir(parents=True)
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    done = run(tmp_path, [*command, "--out", "out"])
    assert done.returncode == 2
    folder, name = Path("out", place).parent, path.name
    problem = f"--out {folder}: {name} in it is not a regular file; allowed: a folder without it"
    assert done.stderr == f"samestep: {problem}\n"
    assert plans.started(tmp_path) == []


def test_a_processor_that_is_too_old_has_a_sentence(tmp_path: Path) -> None:
    old = "RuntimeError('NumPy was built with baseline optimizations that your machine does not support')"
    done = run(tmp_path, ["-c", _INTERRUPTED.replace("os.kill(os.getpid(), signal.SIGINT)", f"raise {old}")])
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("samestep: cannot start: NumPy was built")


@pytest.mark.parametrize("code", [_INTERRUPTED, _SHORT.format(error="os.kill(os.getpid(), 2) or ValueError")])
def test_an_interrupt_in_the_first_second_prints_one_line(tmp_path: Path, code: str) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = run(tmp_path, ["-c", code])
    signal.signal(signal.SIGINT, before)
    assert done.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert (done.stdout, done.stderr) == ("", "samestep: interrupted\n")
