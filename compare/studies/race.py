"""Race the tunings of one backend: which to try next, and which one leads. Pure: a caller times them.

The search climbs. A sweep times the leader beside every tuning that differs from it in one knob. The next sweep times
the fastest of these, and the tuning with all knobs that helped. The fastest of both leads from then on. The race ends
when no neighbour of the leader is faster by the margin. A caller that is short of time may time the first tunings of a
sweep only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from compare.base import compiler_flags
from compare.base.interface import TRAIN, Refused
from compare.base.knobs import KNOBS, Knob, Value
from compare.settings import tunings

MARGIN = 0.01
"""The least gain that makes a tuning the leader."""

_NOT_RACED = (
    *("parallel", "overlap-reduction", "overlap-exchanges", "compiled-autograd"),
    *("pieces", "input", "exported", "fused-batch-norm"),
)
"""Knobs of several devices, knobs that trade speed for something else, and one that needs a further package."""
_BASES = (tunings.STOCK, "compiled")
_FIRST = {"cpu": (_BASES,), "cuda": (("compiled",), (tunings.STOCK,))}
"""The bases that begin a race, by device. If none of them trains, the next ones follow."""
_CAPTURE, _FLAGS = "graph-capture", "compiler-flags"
_SAVES_MEMORY = "rematerialisation"
_STEPS = {"cpu": (4, 8, 24), "cuda": (8, 24, 4)}
"""The values of `steps-per-dispatch` that are tried, by device. On a GPU the race begins with the first."""
_LATER = {"cuda": {"compile", _FLAGS}, "cpu": {"compile", _FLAGS, "steps-per-dispatch"}}
"""Knobs that the race does not begin with, by device. On a CPU, XLA runs loops over steps slowly."""


@dataclass(frozen=True)
class Track:
    """Where a race is run: a backend, a device, and the work.

    Attributes:
        may_search_long: whether knobs that compile for minutes are tried.
        saves_memory: whether knobs that only save memory are tried.
        is_possible: tells whether the model and the machine have what a tuning needs.
    """

    backend: str
    device: str
    workload: str
    precision: str
    task: str = TRAIN
    may_search_long: bool = False
    saves_memory: bool = False
    is_possible: Callable[[str], bool] = lambda _: True

    def resolve(self, tuning: str) -> dict[str, Value] | None:
        """Return the knobs of a tuning, or None if they do not go together here."""
        try:
            return tunings.resolve(self.backend, tuning, self.device, self.workload, self.precision, task=self.task)
        except Refused:
            return None

    def list_starts(self, attempt: int = 0) -> list[str]:
        """Return the tunings that begin the race: each base alone and with every other knob. Empty if none is left.

        `attempt` is the number of earlier starts that trained nothing.
        """
        attempts = _FIRST[self.device]
        bases = attempts[attempt] if attempt < len(attempts) else ()
        starts: list[str] = list(bases)
        for base in bases:
            more = [name for name in self.list_neighbours(base) if self._adds_knobs(base, name)]
            starts.append(self.merge(base, more))
        return self.drop_equal(starts)

    def _adds_knobs(self, base: str, other: str) -> bool:
        """Return whether a tuning switches knobs on, and none of them is for later."""
        own, others = self.resolve(base) or {}, self.resolve(other) or {}
        changed = {name: value for name, value in others.items() if value != own.get(name)}
        return False not in changed.values() and not changed.keys() & _LATER[self.device]

    def list_neighbours(self, leader: str) -> list[str]:
        """Return the tunings that differ from the leader in one knob. Where a knob needs captured steps, in two."""
        base = self.resolve(leader) or {}
        changes = [change for knob in KNOBS.values() for change in self._list_changes(knob, base)]
        neighbours = list[str]()
        for change in changes:
            alone = self.write({**base, **change})
            neighbours.append(self.write({**base, **change, _CAPTURE: True}) if self.resolve(alone) is None else alone)
        return self.drop_equal([leader, *neighbours])[1:]

    def merge(self, leader: str, others: Sequence[str]) -> str:
        """Return the leader with the changes of several other tunings. The first one decides a knob."""
        base, values = self.resolve(leader) or {}, dict[str, Value]()
        for other in others:
            for name, value in (self.resolve(other) or {}).items():
                if value != base.get(name):
                    values.setdefault(name, value)
        return self.write({**base, **values})

    def drop_equal(self, names: Sequence[str]) -> list[str]:
        """Return the tunings that are possible here, without those that have the knobs of an earlier one."""
        seen, kept = list[dict[str, Value]](), list[str]()
        for name in names:
            knobs = self.resolve(name)
            if knobs is not None and knobs not in seen and self.is_possible(name):
                seen.append(knobs)
                kept.append(name)
        return kept

    def write(self, knobs: Mapping[str, Value]) -> str:
        """Return knobs in their shortest form: the base that is nearest, and every knob that differs from it."""
        forms = list[str]()
        for base in _BASES:
            own = self.resolve(base) or {}
            changed = (_spell(name, value) for name, value in knobs.items() if own.get(name) != value)
            forms.append("+".join([base, *changed]))
        return min(forms, key=lambda form: form.count("+"))

    def _list_changes(self, knob: Knob, base: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
        if not knob.is_switch(self.backend) or self.task not in knob.tasks or knob.name in _NOT_RACED:
            return
        if knob.name == _SAVES_MEMORY and not self.saves_memory:
            return
        if knob.name == "max-autotune" and not self.may_search_long:
            return
        value = base.get(knob.name, knob.default)
        if knob.name == _FLAGS:
            words = compiler_flags.list_words(self.backend, self.device)
            yield from ({_FLAGS: word} for word in words if word != value)
            return
        if isinstance(value, bool):
            yield {knob.name: not value}
        elif isinstance(value, int):
            yield from ({knob.name: steps} for steps in _STEPS[self.device] if steps != value)


@dataclass
class Race:
    """The state of one race.

    Attributes:
        track: where it is run.
        leader: the tuning that leads, or None before the first sweep.
        times: the step time of each tuning that was timed, relative to the first one.
        ended: why the race is over, or None.
        untried: the tunings that the race knew of and had not tried when it was stopped.
    """

    track: Track
    leader: str | None = None
    times: dict[str, float] = field(default_factory=dict[str, float])
    ended: str | None = None
    untried: Sequence[str] = ()
    _attempt: int = 0
    _tried: set[str] = field(default_factory=set[str])
    _starts: list[str] = field(default_factory=list[str])
    _promising: list[str] = field(default_factory=list[str])

    def plan_sweep(self) -> list[str]:
        """Return the tunings to time next, the leader first. An empty list ends the race."""
        if self.ended:
            return []
        if not self._starts and self.leader is None:
            self._starts = self.track.list_starts(self._attempt)
        if self._starts or self.leader is None:
            return [*([self.leader] if self.leader else ()), *self._starts]
        if self._promising:
            merged = self.track.merge(self.leader, self._promising)
            return self.track.drop_equal([self.leader, self._promising[0], merged])
        neighbours = self._list_new_neighbours(self.leader)
        if not neighbours:
            self.ended = "every knob was tried"
            return []
        return [self.leader, *neighbours]

    def note(self, sweep: Sequence[str], ratios: Mapping[str, float]) -> None:
        """Take the outcome of a sweep, or of its first tunings: each one's step time over the first one's.

        Failed tunings are missing.
        """
        self._tried.update(sweep)
        pace = self.times.get(self.leader or "", 1.0)
        self.times |= {name: pace * ratio for name, ratio in ratios.items()}
        if self.leader is None and not self._starts:
            self._starts = self.track.list_starts(self._attempt)
        if self._starts or self.leader is None:
            timed = [self.track.resolve(name) for name in sweep]
            self._starts = [name for name in self._starts if self.track.resolve(name) not in timed]
            if ratios:
                self.leader = min(ratios, key=lambda name: ratios[name])
            elif self.leader is None and not self._starts:
                self._attempt += 1
                self.ended = None if self.track.list_starts(self._attempt) else "no tuning trained"
            return
        faster = [name for name in sorted(ratios, key=lambda name: ratios[name]) if ratios[name] < 1 - MARGIN]
        if self._promising:
            self._promising = []
            self.leader = faster[0] if faster else self.leader
        else:
            self._promising = faster
        if not faster and not self._list_new_neighbours(self.leader):
            self.ended = "nothing left wins by 1 %"

    def _list_new_neighbours(self, leader: str) -> list[str]:
        tried = [self.track.resolve(name) for name in self._tried]
        return [name for name in self.track.list_neighbours(leader) if self.track.resolve(name) not in tried]

    def stop(self, reason: str) -> None:
        """End the race early, and keep what it has not tried."""
        self.untried = self.untried or self._list_untried()
        self.ended = reason

    def _list_untried(self) -> list[str]:
        tried = [self.track.resolve(name) for name in self._tried]
        coming = self.plan_sweep()
        if self.leader is not None:
            coming += self.track.list_neighbours(self.leader)
        return [name for name in self.track.drop_equal(coming) if self.track.resolve(name) not in tried]

    def list_fastest(self) -> list[str]:
        """Return the tunings that trained, the fastest first. One must be faster than the leader by the margin."""
        return sorted(self.times, key=lambda name: self.times[name] * ((1 - MARGIN) if name == self.leader else 1))


def _spell(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return name if value else f"{name}=off"
    return f"{name}={value}"
