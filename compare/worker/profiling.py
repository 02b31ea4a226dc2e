"""Profile the steps of a session, and time other steps without the profiler."""

import fcntl
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compare.base import profiles
from compare.base.errors import take_first_line
from compare.base.interface import Session
from compare.base.operation_counts import Operation
from compare.base.profiles import Peaks, ProfileReply

_LEAST_SECONDS = 0.3
_MOST_BLOCKS = 50
_WARM_UPS = 2


def profile(
    session: Session, steps: int, path: Path, timed: Callable[[int], float], peaks: bool, lock: Path
) -> ProfileReply:
    """Profile `steps` steps, and write the profile to `path`. `timed(steps)` trains steps and returns their seconds.

    All that follows the first steps runs under `lock`, so sessions that share it do not disturb each other.
    If a part fails, the reply has the reason, and the other parts stay.
    """
    reasons = list[str]()
    operations: Sequence[Operation] | None = None
    try:
        operations = session.operations()
    except Exception as error:
        traceback.print_exc()
        reasons.append(f"the step's operations could not be traced: {take_first_line(error)}")
    session.watch()
    for _ in range(_WARM_UPS):
        timed(steps)
    with _locked(lock):
        try:
            path.write_text(profiles.write(session.profile(steps)), encoding="utf-8")
        except Exception as error:
            traceback.print_exc()
            reasons.append(f"the framework's profiler failed: {take_first_line(error)}")
        seconds, host = _time(session, steps, timed)
        reached = _measure_peaks(session) if peaks else None
    return ProfileReply(steps, seconds, host, operations, reached, "; ".join(reasons) or None)


def _time(session: Session, steps: int, timed: Callable[[int], float]) -> tuple[float, float]:
    """Return seconds per step: of the whole step, and of Python until it has started the step's work."""
    blocks = list[float]()
    while sum(blocks) < _LEAST_SECONDS and len(blocks) < _MOST_BLOCKS:
        blocks.append(timed(steps))
    hosts = list[float]()
    for _ in range(min(len(blocks), 5)):
        start = time.perf_counter()
        session.run(steps)
        hosts.append(time.perf_counter() - start)
        session.wait()
    return sorted(blocks)[len(blocks) // 2] / steps, min(hosts) / steps


def _measure_peaks(session: Session) -> Peaks:
    try:
        return session.peaks()
    except Exception as error:
        traceback.print_exc()
        return Peaks(reason=f"the peaks could not be measured: {take_first_line(error)}")


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
