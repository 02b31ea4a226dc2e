"""Run pytest sessions as forks of one process that has imported what they need: that saves most of a session's time.

`tests/plugin/test_load.py` and `tests/end_to_end` start sessions as users do. The packages of plugins are not imported
here, because pytest must be the first to import them.
"""

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

MODULE = "tests.plugin.session_server"


class Server:
    """Forks a session for every request, one after the other."""

    def __init__(self) -> None:
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._process.communicate)

    def run(self, arguments: Sequence[str], folder: Path, seconds: float) -> pytest.RunResult:
        """Run `pytest ARGUMENTS` in a folder with this process's variables."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        start = time.monotonic()
        out, error = folder / "stdout", folder / "stderr"
        asked = {
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(os.environ),
            "files": [str(out), str(error)],
        }
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            self._process.kill()
            pytest.fail(f"pytest ran for more than {seconds} s")
        code = int(self._process.stdout.readline())
        lines = [file.read_text().splitlines() for file in (out, error)]
        for file, stream in ((out, sys.stdout), (error, sys.stderr)):
            stream.write(file.read_text())  # pytest shows it if the test fails
            file.unlink()
        return pytest.RunResult(code, lines[0], lines[1], time.monotonic() - start)


@functools.cache
def find_server() -> Server:
    """Return the server of this process. The first call starts it."""
    return Server()


def _serve() -> None:
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            _be_session(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201 -- the protocol


def _be_session(asked: dict[str, Any]) -> NoReturn:
    for number, file in enumerate([os.devnull, *asked["files"]]):
        handle = os.open(file, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[0:0] = [asked["folder"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = ["pytest", *asked["arguments"]]
    code = 3
    try:
        code = int(pytest.main(asked["arguments"]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import compare.api
    import compare.plugin.comparisons
    import compare.plugin.reports
    import compare.plugin.rows
    import tests.fakebackend.plans
    import tests.unit.result_factory  # noqa: F401

    compare.__doc__ = "PYTEST_DONT_REWRITE"  # without this, pytest warns that it was not the first to import it
    _serve()
