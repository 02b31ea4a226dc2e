"""Show progress on standard error. It is written only on a call, so nothing runs while a block is timed."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compare.execution.launcher import Progress as Callback

_LINE_SECONDS = 60.0
"""A phase that lasts gets a line a minute in a log, when a part of it ends."""

_PHASE_SECONDS = 10.0
"""A new phase gets a line in a log, unless one came so shortly before."""

_LAST_PHASE, _LEAST_ROUNDS = "timed rounds", 2

_NOTHING_KNOWN: Mapping[str, float] = {}


class PhaseClock:
    """The seconds of each phase so far, and of what is left.

    Args:
        expected: the seconds of each phase in an earlier run, empty if unknown.
    """

    def __init__(self, expected: Mapping[str, float] = _NOTHING_KNOWN) -> None:
        self.seconds = dict[str, float]()
        self._expected, self._phase, self._since = expected, "", monotonic()

    def enter(self, phase: str) -> None:
        """Note that this phase goes on, or begins."""
        now = monotonic()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = _name_phase(phase), now

    def estimate_most_left(self, done: int, total: int) -> float | None:
        """Return the most seconds that are left of the timed rounds, None in other phases and before two rounds.

        The first round is longer than the others, so this may be too much, and timing may stop early.
        """
        if self._phase != _LAST_PHASE or done < _LEAST_ROUNDS or done >= total:
            return None
        passed = self.seconds.get(self._phase, 0.0) + monotonic() - self._since
        return passed / done * (total - done)

    def estimate_left(self) -> float | None:
        """Return the seconds that are left if this run goes on as the earlier one, None if that is unknown."""
        if not self._expected:
            return None
        names = list(self._expected)
        # Phases before this one are over, also if this run skips them because it found what they make.
        coming = names[names.index(self._phase) :] if self._phase in names else names
        unseen = (self._expected[phase] for phase in coming if phase not in {self._phase, *self.seconds})
        now = self._expected.get(self._phase, 0.0) - self.seconds.get(self._phase, 0.0)
        return sum(unseen) + max(0.0, now)


@contextmanager
def show(part: str = "", clock: PhaseClock | None = None) -> Generator[Callback]:
    """Yield a progress callback for the `with` block: a bar on a terminal, or else lines of a log.

    `part` comes before the name of each phase. `clock` learns of every phase, and knows the time that is left.
    """
    console, clock = Console(stderr=True), clock or PhaseClock()
    if not console.is_terminal:
        yield _lines(console, part, clock)
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("starting", total=1)

        def advance(phase: str, done: int, total: int) -> None:
            clock.enter(phase)
            text = f"{part}{phase}{_describe_left(clock, done, total)}"
            bar.update(task, description=text, completed=done, total=total, refresh=True)

        yield advance


def describe_seconds(seconds: float) -> str:
    """Return a duration in words: seconds below two minutes, otherwise minutes."""
    return f"{seconds:.0f} s" if seconds < 119.5 else f"{seconds / 60:.0f} minutes"


def _name_phase(text: str) -> str:
    """Return the name of a phase. Words after a colon or in brackets tell of one moment."""
    return text.partition(":")[0].partition(" (")[0]


def _describe_left(clock: PhaseClock, done: int, total: int) -> str:
    if (left := clock.estimate_left()) is not None:
        return f", about {describe_seconds(left)} left"
    most = clock.estimate_most_left(done, total)
    return "" if most is None else f", at most {describe_seconds(most)} left"


def _lines(console: Console, part: str, clock: PhaseClock) -> Callback:
    start = last = monotonic()
    previous = ""

    def advance(phase: str, done: int, total: int) -> None:
        nonlocal last, previous
        clock.enter(phase)
        now = monotonic()
        name = _name_phase(phase)
        if now >= last + (_LINE_SECONDS if name == previous else _PHASE_SECONDS):
            last = now
            minutes, seconds = divmod(int(now - start), 60)
            text = f"{minutes:3}:{seconds:02}  {part}{phase} {done}/{total}{_describe_left(clock, done, total)}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        previous = name

    return advance
