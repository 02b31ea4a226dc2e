"""Search the fastest knobs of each backend for a workload or a user's pair on this device.

Every sweep of a race is one comparison with fresh processes, kept programs and few rounds (`compare.studies.race`). It
claims nothing, because it has no certificate. The default tuning is certified before the race. The winner is certified
after it with exactly its knobs, and timed beside the default. The first candidate that agrees is named. A faster one
that does not agree is listed as such.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from compare.base import early_stopping, typed_json
from compare.base.interface import INFER, Refused
from compare.base.interruptions import TimeOver, end_after
from compare.base.knobs import has_knobs
from compare.base.typed_json import JsonObject
from compare.data import datasets
from compare.results import result_file
from compare.results.model import Contender, Result
from compare.settings import best, contenders, plan, tunings
from compare.settings.options import Settings
from compare.studies import study
from compare.studies.budget import Budget
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

    `batch_size` is that of the timed steps, or of the timed requests. `untried` has the tunings that the race still
    knew of when the budget ended it, by backend.
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
    untried: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


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

    @property
    def is_for_speed(self) -> bool:
        """Whether the winner is the fastest tuning, for which `best` stands."""
        return self.objective == TIME and self.memory_bytes is None


@dataclass(frozen=True)
class _Certificate:
    """What a comparison with a certificate showed of a tuning and its baseline.

    Attributes:
        is_passed: whether they agree.
        gain: the tuning's figure over the baseline's, None without both.
        baseline_fits: whether the baseline takes no more memory than allowed.
        status: of the tuning, as in `Trial`.
        ratios: by tuning, the figure over the first one. Tunings that may not lead are missing.
    """

    is_passed: bool = False
    gain: float | None = None
    baseline_fits: bool = True
    status: str = "ok"
    ratios: Mapping[str, float] = field(default_factory=dict[str, float])


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
        place = plan.find_place(self.settings)
        workload, device = place.workload, place.device
        if self.limits.objective == ENERGY and device != "cuda":
            raise Refused("--objective energy needs a GPU, whose energy NVML tells; allowed here: --objective time")
        backends = list_backends(self.settings)
        winner, ended, gains = dict[str, str](), dict[str, str](), dict[str, float]()
        untried, is_screen = dict[str, tuple[str, ...]](), self.limits.is_screen
        budget = Budget(self.limits.seconds, len(backends))
        for backend in backends:
            self._check(f"{backend}:{contenders.make_default_tuning(backend)}")
            budget.begin_backend()
            race = Race(self._make_track(backend, workload.name, device))
            default_agrees = self._race(race, budget)
            found = None if is_screen else self._find_winner(race, budget, default_agrees=default_agrees)
            ended[backend] = self._explain_end(race)
            if race.untried:
                untried[backend] = tuple(race.untried)
            if found is not None:
                name, gains[backend] = found
                winner[backend] = f"{backend}:{name}"
                if self.limits.is_for_speed:
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
            seconds=round(budget.passed, 1),
            ended=ended,
            gains=gains,
            untried=untried,
        )

    def _explain_end(self, race: Race) -> str:
        statuses = {self._trials[name].status for name in self._trials if name.startswith(f"{race.track.backend}:")}
        if statuses == {"void"}:
            return "other programs disturbed every round; stop them, or raise --void-limit"
        if race.untried and not statuses:
            return f"{race.ended} before anything was timed; --budget {2 * self.limits.seconds:g} may do"
        return race.ended or "the race is over"

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
            is_possible=partial(self._is_possible, backend),
        )

    def _is_possible(self, backend: str, tuning: str) -> bool:
        try:
            self._check(f"{backend}:{tuning}")
        except Refused:
            return False
        return True

    def _check(self, name: str) -> None:
        """Check whether a contender can be trained here.

        Raises:
            Refused: it cannot.
        """
        settings = self._make_settings([name], rounds=_SHORT_ROUNDS, agreement=False)
        plan.make(settings, dataset=datasets.make_empty("not yet"), least_contenders=1)

    def _race(self, race: Race, budget: Budget) -> bool:
        """Race until the race ends or the budget does. Return whether the default tuning is certified.

        The default tuning is certified first. So there is a tuning to name whatever follows, and the time of a
        certificate is known. A sweep has only as many tunings as there is time for.
        """
        over, is_screen = f"the budget of {self.limits.seconds:g} s ended the search", self.limits.is_screen
        is_certified, sweeps = False, 0
        try:
            if not is_screen:
                is_certified = self._certify_default(race, budget)
            while sweep := race.plan_sweep():
                count = len(sweep) if is_screen else min(len(sweep), budget.count_tunings())
                if count < min(2, len(sweep)):
                    race.stop(over)
                    break
                self.on_sweep(
                    f"{race.track.backend}: {count} tunings, the leader is {race.leader or 'not known yet'}, "
                    f"{budget.left:.0f} s are left"
                )
                with end_after(budget.trial_seconds):
                    ratios = self._time(race.track.backend, sweep[:count], budget)
                race.note(sweep[:count], ratios)
                sweeps += 1
                if is_screen and sweeps >= _SCREENED_SWEEPS:
                    race.ended = f"{_SCREENED_SWEEPS} sweeps were timed"
        except TimeOver:
            race.stop(over)
        return is_certified

    def _certify_default(self, race: Race, budget: Budget) -> bool:
        """Certify the default tuning, and begin the race with its time. Return whether it can be named.

        Raises:
            TimeOver: the budget is over.
        """
        backend, default = race.track.backend, contenders.make_default_tuning(race.track.backend)
        self.on_sweep(f"{backend}: certify {default}, the default, {budget.left:.0f} s are left")
        with end_after(budget.left):
            certificate = self._certify(backend, tunings.STOCK, default, budget)
        if certificate.ratios:
            race.note([tunings.STOCK, default], certificate.ratios)
        return certificate.is_passed and certificate.status != _MEMORY

    def _time(self, backend: str, sweep: Sequence[str], budget: Budget) -> dict[str, float]:
        """Return the ratio of each tuning of a sweep to the first one. If that failed, its last figure counts."""
        names = [f"{backend}:{tuning}" for tuning in sweep]
        result, seconds = self._compare(names, rounds=_SHORT_ROUNDS, agreement=False)
        budget.note_trial(seconds, len(names))
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

    def _find_winner(self, race: Race, budget: Budget, *, default_agrees: bool) -> tuple[str, float] | None:
        """Return the fastest candidate that agrees, and its gain over the default tuning.

        If none agrees, or the budget is over before, it is the default tuning. None if that does not agree either.
        """
        track, default = race.track, contenders.make_default_tuning(race.track.backend)
        fallback = (default, 1.0) if default_agrees else None
        for name in race.list_fastest()[:_CANDIDATES]:
            if track.resolve(name) == track.resolve(default):
                if fallback:
                    return fallback
                continue
            try:
                self.on_sweep(f"{track.backend}: certify {name}, {budget.left:.0f} s are left")
                with end_after(budget.left):
                    certificate = self._certify(track.backend, default, name, budget)
            except TimeOver:
                race.stop(f"the budget of {self.limits.seconds:g} s ended the certificate of {name}")
                return fallback
            if certificate.is_passed and certificate.gain is not None:
                wins = certificate.gain < 1 or not certificate.baseline_fits
                return (name, certificate.gain) if wins else (default, 1.0)
        return fallback

    def _certify(self, backend: str, baseline: str, tuning: str, budget: Budget) -> "_Certificate":
        """Compare two tunings, and prove that they agree."""
        pair = [f"{backend}:{baseline}", f"{backend}:{tuning}"]
        result, seconds = self._compare(pair, rounds=_CERTIFIED_ROUNDS, agreement=True)
        budget.note_certificate(seconds)
        if result is None:
            return _Certificate()
        passed = result.agreement.status == "pass"
        judged = [self._judge(contender) for contender in result.contenders]
        (first, why, said), (figure, status, reason) = judged
        self._note(result.contenders[0], why, said, 1.0 if first else None, passed or None)
        base = self._get_figure(result.contenders[0]) if why == _MEMORY else first
        gain = figure / base if base and figure else None
        self._note(result.contenders[1], status, reason, gain, passed)
        figures = {name: each for name, each in ((baseline, first), (tuning, figure)) if each}
        self._figures |= {f"{backend}:{name}": each for name, each in figures.items()}
        ratios = {name: each / next(iter(figures.values())) for name, each in figures.items()}
        return _Certificate(passed, gain, why != _MEMORY, status, ratios)

    def _compare(self, names: Sequence[str], *, rounds: int, agreement: bool) -> tuple[Result | None, float]:
        """Return the result of a comparison, and its seconds, also if an earlier run kept it."""
        self._count += 1
        settings = replace(
            self._make_settings(names, rounds=rounds, agreement=agreement), out=self.folder / f"sweep-{self._count}"
        )
        cell = Cell(" ".join(names), settings)
        state = study.run_alone(cell, self.store, self.command, f"sweep {self._count}: ")
        if state.status == REFUSED:
            raise Refused(state.reason or "the comparison is refused")
        return state.result, state.seconds or 0.0

    def _make_settings(self, names: Sequence[str], *, rounds: int, agreement: bool) -> Settings:
        return replace(
            self.settings,
            contenders=tuple(names),
            rounds=rounds,
            agreement=agreement,
            energy=self.limits.objective == ENERGY,
            measures_memory=agreement or self.limits.memory_bytes is not None,
            cold_compile=False,
            epochs=None if self.settings.task == INFER else 1,
            out=self.folder,
        )

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
