"""Search the fastest knobs of each backend for a workload or a user's pair on this device.

Every sweep of a race is one comparison with fresh processes, kept programs and few rounds (`compare.studies.race`). It
claims nothing, because it has no certificate. The winners are then certified with exactly their knobs, and timed beside
the default tuning. The first candidate that agrees is named. A faster one that does not agree is listed as such.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from compare.base import early_stopping, typed_json
from compare.base.interface import INFER, Refused
from compare.base.knobs import has_knobs
from compare.base.typed_json import JsonObject
from compare.results import result_file
from compare.results.model import Contender, Result
from compare.settings import best, contenders, plan, tunings
from compare.settings.options import Settings
from compare.studies import study
from compare.studies.cell_store import REFUSED, CellStore
from compare.studies.cells import Cell
from compare.studies.race import Race, Track

FILE_NAME = "tuning.json"
TIME, ENERGY = OBJECTIVES = ("time", "energy")
MOST_SECONDS = 600.0

_SHORT_ROUNDS, _CERTIFIED_ROUNDS = 2, early_stopping.LEAST_ROUNDS
_SCREENED_SWEEPS = 2
_MEMORY = "memory"
_LONG_SEARCH_SECONDS = 1200.0  # from this budget on, knobs that compile for minutes are tried
_CANDIDATES = 3
"""Candidates that are certified, one after the other, until one agrees."""


@dataclass(frozen=True, kw_only=True)
class Trial(JsonObject):
    """The last trial of one tuning.

    Attributes:
        contender: as `samestep compare` takes it.
        status: `ok`, the failure of a contender, or `memory` for one that takes more than the limit.
        reason: why it failed, or None.
        step_seconds: its step time, or the median latency of a request.
        ratio: its time, or its energy, over that of the first tuning in its last comparison.
        agreement: whether its certificate passed; None if it was not certified.
    """

    contender: str
    status: str
    reason: str | None
    step_seconds: float | None
    ratio: float | None
    agreement: bool | None


@dataclass(frozen=True, kw_only=True)
class Tuning(JsonObject):
    """What `samestep tune` found: `winner` by backend, and every trial. `ended` says why each race ended.

    `batch_size` is that of the timed steps, or of the timed requests.
    """

    winner: dict[str, str]
    trials: tuple[Trial, ...]
    workload: str
    device: str
    precision: str
    task: str
    batch_size: int
    objective: str
    seconds: float
    ended: dict[str, str]
    gains: dict[str, float]


@dataclass(frozen=True)
class Limits:
    """What bounds a search.

    Attributes:
        seconds: the budget of the whole search.
        memory_bytes: the most that a tuning may take, or None.
        objective: `time` or `energy`.
        is_screen: whether to time the first tunings and the neighbours of the best one, without a claim.
    """

    seconds: float = MOST_SECONDS
    memory_bytes: int | None = None
    objective: str = TIME
    is_screen: bool = False


@dataclass
class Search:
    """A search over the backends that a user names.

    Attributes:
        settings: the settings of every comparison; its contenders are the backends.
        limits: what bounds the search.
        store: where sweeps are kept.
        command: the command line that results name.
        on_sweep: is told what comes next, in words.
    """

    settings: Settings
    limits: Limits
    store: CellStore
    command: Sequence[str]
    folder: Path
    on_sweep: Callable[[str], None] = lambda _: None
    _trials: dict[str, Trial] = field(default_factory=dict[str, Trial])
    _figures: dict[str, float] = field(default_factory=dict[str, float])
    _count: int = 0

    def run(self) -> Tuning:
        """Run all races, certify the winners, keep them for the tuning `best`, and return what was found.

        Raises:
            Refused: the comparison cannot be done, or nothing of a backend trained.
            KeyboardInterrupt, SystemExit: an interruption. Finished sweeps are kept, and the same command goes on.
        """
        start = monotonic()
        place = plan.find_place(self.settings)
        workload, device = place.workload, place.device
        if self.limits.objective == ENERGY and device != "cuda":
            raise Refused("--objective energy needs a GPU, whose energy NVML tells; allowed here: --objective time")
        backends = list_backends(self.settings)
        winner, ended, gains = dict[str, str](), dict[str, str](), dict[str, float]()
        for index, backend in enumerate(backends):
            left = self.limits.seconds - (monotonic() - start)
            race = self._race(
                self._make_track(backend, workload.name, device), monotonic() + left / (len(backends) - index)
            )
            ended[backend] = race.ended or "the time was over"
            if self.limits.is_screen or race.leader is None:
                continue
            if found := self._certify(race):
                name, gains[backend] = found
                winner[backend] = f"{backend}:{name}"
                best.keep(self.settings.store, place, backend, name)
        return Tuning(
            winner=winner,
            trials=tuple(sorted(self._trials.values(), key=lambda trial: trial.step_seconds or math.inf)),
            workload=workload.name,
            device=device,
            precision=self.settings.precision,
            task=self.settings.task,
            batch_size=place.raced_size,
            objective=self.limits.objective,
            seconds=round(monotonic() - start, 1),
            ended=ended,
            gains=gains,
        )

    def _make_track(self, backend: str, workload: str, device: str) -> Track:
        limits, settings = self.limits, self.settings
        return Track(
            backend,
            device,
            workload,
            settings.precision,
            settings.task,
            may_search_long=limits.seconds >= _LONG_SEARCH_SECONDS,
            saves_memory=limits.memory_bytes is not None,
        )

    def _race(self, track: Track, end: float) -> Race:
        race, durations = Race(track), [0.0]
        while sweep := race.plan_sweep():
            begin = monotonic()
            # The winner's certificate takes about as long as a sweep.
            if race.leader is not None and begin + 2 * max(durations) > end:
                race.ended = f"another sweep and a certificate would exceed the budget of {self.limits.seconds:g} s"
                break
            self.on_sweep(f"{track.backend}: {len(sweep)} tunings, the leader is {race.leader or 'not known yet'}")
            race.note(sweep, self._time(track.backend, sweep))
            durations.append(monotonic() - begin)
            if self.limits.is_screen and len(durations) > _SCREENED_SWEEPS:
                race.ended = f"{_SCREENED_SWEEPS} sweeps were timed"
        return race

    def _time(self, backend: str, sweep: Sequence[str]) -> dict[str, float]:
        """Return the ratio of each tuning of a sweep to the first one. If that failed, its last figure counts."""
        names = [f"{backend}:{tuning}" for tuning in sweep]
        result = self._compare(names, rounds=_SHORT_ROUNDS, agreement=False)
        ran = result.contenders if result else ()
        judged = [self._judge(contender) for contender in ran]
        figures = {name: figure for name, (figure, _, _) in zip(names, judged, strict=False) if figure is not None}
        self._figures |= figures
        first = self._figures.get(names[0]) or next(iter(figures.values()), 1.0)
        ratios = {name: figure / first for name, figure in figures.items()}
        for name, contender, (_, status, reason) in zip(names, ran, judged, strict=False):
            self._note(contender, status, reason, ratios.get(name), None)
        return {tuning: ratios[name] for tuning, name in zip(sweep, names, strict=True) if name in ratios}

    def _judge(self, contender: Contender) -> tuple[float | None, str, str | None]:
        """Return the figure of the objective, or the status and reason of a failure."""
        if contender.status != "ok" or get_seconds(contender) is None:
            status = contender.status if contender.status != "ok" else "void"
            return None, status, contender.reason or "no round counts"
        most, memory = self.limits.memory_bytes, contender.memory
        taken = memory and (memory.live_peak_bytes or memory.process_bytes)
        if most is not None and (taken is None or taken > most):
            taken_text = "an unknown amount" if taken is None else f"{taken / 2**20:,.0f} MiB"
            return None, _MEMORY, f"takes {taken_text}, and --memory allows {most / 2**20:,.0f} MiB"
        figure = self._get_figure(contender)
        return figure, "ok" if figure else "energy", None if figure else "no energy was measured"

    def _get_figure(self, contender: Contender) -> float | None:
        """Return the joules of a step, or the seconds, as the objective says."""
        if self.limits.objective == TIME:
            return get_seconds(contender)
        return contender.energy.joules_per_step if contender.energy else None

    def _certify(self, race: Race) -> tuple[str, float] | None:
        """Return the fastest candidate that agrees, and its gain over the default tuning. None if none agrees."""
        track = race.track
        default = contenders.make_default_tuning(track.backend)
        for name in race.list_fastest()[:_CANDIDATES]:
            self.on_sweep(f"{track.backend}: certify {name}")
            is_default = track.resolve(name) == track.resolve(default)
            baseline = tunings.STOCK if is_default else default
            pair = [f"{track.backend}:{baseline}", f"{track.backend}:{name}"]
            result = self._compare(pair, rounds=_CERTIFIED_ROUNDS, agreement=True)
            if result is None:
                continue
            passed = result.agreement.status == "pass"
            judged = [self._judge(contender) for contender in result.contenders]
            (first, why, said), (figure, status, reason) = judged
            self._note(result.contenders[0], why, said, 1.0 if first else None, passed or None)
            if why == _MEMORY:
                first = self._get_figure(result.contenders[0])
            ratio = figure / first if first and figure else None
            self._note(result.contenders[1], status, reason, ratio, passed)
            if passed and is_default:
                return default, 1.0
            if passed and ratio is not None:
                return (name, ratio) if ratio < 1 or why == _MEMORY else (default, 1.0)
        return None

    def _compare(self, names: Sequence[str], *, rounds: int, agreement: bool) -> Result | None:
        self._count += 1
        settings = replace(
            self.settings,
            contenders=tuple(names),
            rounds=rounds,
            agreement=agreement,
            energy=self.limits.objective == ENERGY,
            measures_memory=agreement or self.limits.memory_bytes is not None,
            cold_compile=False,
            epochs=None if self.settings.task == INFER else 1,
            out=self.folder / f"sweep-{self._count}",
        )
        cell = Cell(" ".join(names), settings)
        state = study.run_alone(cell, self.store, self.command, f"sweep {self._count}: ")
        if state.status == REFUSED:
            raise Refused(state.reason or "the comparison is refused")
        return state.result

    def _note(
        self, contender: Contender, status: str, reason: str | None, ratio: float | None, agreement: bool | None
    ) -> None:
        name = f"{contender.backend}:{contender.tuning}"
        self._trials[name] = Trial(
            contender=name,
            status=status,
            reason=reason,
            step_seconds=get_seconds(contender),
            ratio=ratio,
            agreement=agreement,
        )


def list_backends(settings: Settings) -> list[str]:
    """Return the backends to tune.

    Raises:
        Refused: as `contenders.parse_backends`, or a backend has no knobs.
    """
    texts = settings.contenders or contenders.list_sides(plan.resolve(settings)[0])
    backends = contenders.parse_backends(texts, "tune")
    if plain := next((backend for backend in backends if not has_knobs(backend)), None):
        raise Refused(f"samestep tune {plain}: {plain} has no knobs; allowed: torch, jax")
    return backends


def get_seconds(contender: Contender) -> float | None:
    """Return the step time, or the median latency of the smallest batch."""
    if contender.latency:
        return next(iter(contender.latency.values())).p50
    return contender.step_seconds.estimate if contender.step_seconds else None


def write(tuning: Tuning, folder: Path) -> Path:
    """Write tuning.json into a folder and return its path.

    Raises:
        Refused: the file system refuses.
    """
    return result_file.replace(folder / FILE_NAME, typed_json.write(tuning))
