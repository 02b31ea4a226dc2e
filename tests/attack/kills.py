"""Kill runs at random moments, from a seed, and look what they leave.

Run it as `python -m tests.attack.kills SEED FAKE REAL`: so many runs of the fake backend, and of the real ones. It
prints a line for each kill that breaks a promise. After 10 s nothing is left of a run: no process, no file in the
temporary folder, and no unfinished file in the cache. The next run works.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fakebackend import plans

SECONDS = 10.0
_MARK = "SAMESTEP_ATTACK"
_SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FAKE = ("tests.fakebackend.program", "compare", "fake", "other")
_REAL = ("compare", "compare", "torch", "jax", "--skip-energy")
_LAST_KILL = 60.0
_LONGEST = {_FAKE: 300.0, _REAL: 1800.0}  # seconds of a whole run on a machine with much other work
_ENDED = (0, 1, 3)  # done: a verdict of two rounds on a busy machine may be any


class Place:
    """A folder with a cache, a temporary folder and results, used by one run after the other."""

    def __init__(self, folder: Path, command: tuple[str, ...]) -> None:
        self.folder, self.command = folder, command
        self.temporary, self.cache = folder / "temporary", folder / "cache"
        self.temporary.mkdir()
        fixed = {"TMPDIR": str(self.temporary), _MARK: str(folder), "SAMESTEP_FORKS": "1"}
        self.variables = os.environ | plans.environment(folder, {}) | fixed | {"XDG_CACHE_HOME": str(self.cache)}
        self.arguments = [sys.executable, "-m", *command, "--device", "cpu", "--epochs", "1", "--rounds", "2"]

    def start(self) -> "subprocess.Popen[str]":
        """Start a run, with signals as in a terminal."""
        return subprocess.Popen(
            [*self.arguments, "--out", str(self.folder / "out")],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        )

    def find_leftovers(self) -> Iterator[str]:
        """Yield what is left of a run: processes, files, and unfinished or broken files of the cache."""
        yield from (f"process {pid}" for pid in self._find_processes())
        yield from (f"file {path}" for path in self.temporary.glob("samestep-*"))
        for path in self.cache.rglob("*"):
            if path.parent.name == "unfinished" or path.suffix == ".tmp":
                yield f"unfinished {path}"
            if path.suffix in (".so", ".o") and path.is_file() and not path.stat().st_size:
                yield f"empty {path}"
        result = self.folder / "out" / "result.json"
        if result.exists():
            json.loads(result.read_text())

    def _find_processes(self) -> Iterator[int]:
        mark = f"{_MARK}={self.folder}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                    yield int(path.parent.name)
            except OSError:
                continue  # it has ended


def kill_once(place: Place, source: random.Random, duration: float) -> list[str]:
    """Start a run, kill it after a random part of its `duration`, and return which promises it broke."""
    number = source.choices(_SIGNALS, (4, 2, 1, 1))[0]
    moment = source.uniform(0.1, duration)
    run = place.start()
    time.sleep(moment)
    ended = run.poll() is not None
    run.send_signal(number)
    try:
        error = run.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        run.kill()
        return [f"{number.name} after {moment:.2f} s: still runs a minute later"]
    end, left = time.monotonic() + SECONDS, list(place.find_leftovers())
    while left and time.monotonic() < end:
        time.sleep(0.2)
        left = list(place.find_leftovers())
    if number != signal.SIGKILL and not ended and _has_traceback(error):
        left.append(f"a traceback: {error[-500:]}")
    return [f"{number.name} after {moment:.2f} s: {each}" for each in left]


def attack(command: tuple[str, ...], seed: int, count: int, say: Callable[[str], None]) -> int:
    """Kill so many runs, let a whole run follow, and return how many promises were broken."""
    if not count:
        return 0
    broken, source = list[str](), random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    try:
        place = Place(folder, command)
        start = time.monotonic()
        broken += _run_whole(place, "the first run")
        duration = min(time.monotonic() - start, _LAST_KILL)
        for _ in range(count):
            broken += kill_once(place, source, duration)
        broken += _run_whole(place, "the run after all kills")
        broken += [f"after a whole run: {each}" for each in place.find_leftovers()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for each in broken:
        say(each)
    say(f"{count} kills of {' '.join(command[1:])} from seed {seed}: {len(broken)} broke a promise")
    return len(broken)


def _run_whole(place: Place, what: str) -> list[str]:
    run = place.start()
    try:
        error = run.communicate(timeout=_LONGEST[place.command])[1]
    except subprocess.TimeoutExpired:
        run.kill()
        return [f"{what} does not end"]
    whole = run.returncode in _ENDED and (place.folder / "out" / "result.json").exists()
    return [] if whole and not _has_traceback(error) else [f"{what} ends with {run.returncode}: {error[-500:]}"]


def _has_traceback(error: str) -> bool:
    """Tell whether a run printed a traceback, other than Python's own before samestep's first line.

    The server that forks fake children ends with one of its own.
    """
    return "Traceback" in error and f"{plans.ROOT}/compare/" in error and "fork_server.py" not in error


def main() -> None:
    """Attack, and print what broke."""
    seed, fake, real = map(int, sys.argv[1:])
    broken = attack(_FAKE, seed, fake, print) + attack(_REAL, seed, real, print)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
