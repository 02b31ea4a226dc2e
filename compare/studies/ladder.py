"""Climb from the tutorial's form to the best known one: one change per rung, each certified.

Every rung is a comparison that the store keeps. So the same command goes on after any interruption. A rung of knobs
times each backend with and without the change, in the same rounds. A rung that changes precision, batch or model is a
comparison of its own, and images per second are compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from compare.base import typed_json
from compare.base.interface import INFER, Refused
from compare.report.sentences import count_pruned
from compare.results import result_file
from compare.results.model import Contender, Latency, Result
from compare.settings import contenders, plan, tunings
from compare.settings.options import Settings
from compare.studies import ladder_rungs as rungs
from compare.studies import study
from compare.studies.cell_store import CellState, CellStore
from compare.studies.cells import Cell
from compare.studies.ladder_rungs import Change, Ground, Ladder, Rung, RungContender, Times

FILE_NAME = "ladder.json"
ROUNDS = 3
"""Rounds of each comparison unless the user asks for others."""
REQUEST_SIZES = (1, 32)
"""Images of the requests whose latency a rung shows."""


@dataclass(frozen=True)
class _Level:
    """The best form so far: what the next rung builds on."""

    tunings: Mapping[str, str]
    precision: str
    batch_size: int
    prune: float | None = None
    times: Mapping[str, Times] = field(default_factory=dict[str, Times])
    shown: Mapping[str, RungContender] = field(default_factory=dict[str, RungContender])


@dataclass
class Climb:
    """A ladder that is being climbed.

    Attributes:
        settings: the settings of every comparison; its contenders are the backends, and `prune` is of the last rung.
        names: the rungs that the user names, empty for all.
        store: where comparisons are kept.
        command: the command line that results name.
        folder: gets a folder for each rung.
        has_latency: whether requests are timed on every rung.
        on_rung: is told what comes next, in words.
        on_change: gets the ladder after every rung.
    """

    settings: Settings
    names: Sequence[str]
    store: CellStore
    command: Sequence[str]
    folder: Path
    has_latency: bool = False
    on_rung: Callable[[str], None] = lambda _: None
    on_change: Callable[[Ladder], None] = lambda _: None
    _count: int = 0
    _device_name: str | None = None

    def check(self) -> list[tuple[Change, str]]:
        """Return the rungs to climb, each with the reason why it is skipped, or "".

        Raises:
            Refused: for an unknown rung, or a comparison that cannot be done at all.
        """
        self.settings.check()
        _, device = plan.resolve(replace(self.settings, prune=None, finetune_epochs=None))
        list_backends(self.settings)
        changes = rungs.choose_changes(self.names, self.settings.precision, device)
        try:
            plan.resolve(replace(self.settings, prune=self.settings.prune or rungs.PRUNED_SHARE))
        except Refused as error:
            if self.settings.prune is not None or rungs.PRUNED in self.names:
                raise
            return [(change, str(error) if change.kind == rungs.MODEL else reason) for change, reason in changes]
        return changes

    def run(self) -> Ladder:
        """Climb every rung and return the ladder.

        Raises:
            Refused: the comparison cannot be done at all.
            KeyboardInterrupt, SystemExit: an interruption. Finished rungs are kept, and the same command goes on.
        """
        workload, device = plan.resolve(replace(self.settings, prune=None, finetune_epochs=None))
        changes = self.check()
        self._ground = Ground(device, workload.name)
        self._climbs_to_compiled = any(change.name == rungs.COMPILED for change, _ in changes)
        batch_size = workload.batch_size if self.settings.batch_size is None else self.settings.batch_size
        first = dict.fromkeys(list_backends(self.settings), tunings.STOCK)
        level, climbed = _Level(first, self.settings.precision, batch_size), list[Rung]()
        for change, reason in changes:
            self._count += 1
            self.on_rung(f"rung {self._count} of {len(changes)}, {change.name}: {change.words}")
            rung, level = (_skip(change, level, reason), level) if reason else self._climb(change, level)
            climbed.append(rung)
            self.on_change(self._gather(climbed))
        return self._gather(climbed)

    def _gather(self, climbed: Sequence[Rung]) -> Ladder:
        return Ladder(
            rungs=tuple(climbed),
            workload=self._ground.workload,
            device=self._ground.device,
            device_name=self._device_name,
            margin=self.settings.margin,
            rounds=self.settings.rounds or ROUNDS,
            command=tuple(self.command),
        )

    def _climb(self, change: Change, level: _Level) -> tuple[Rung, _Level]:
        if change.name == rungs.EAGER:
            return self._stand(change, level)
        if change.kind == rungs.KNOB:
            return self._change_knobs(change, level)
        changed = {
            rungs.PRECISION: replace(level, precision=change.name),
            rungs.BATCH: replace(level, batch_size=level.batch_size * rungs.BATCH_FACTOR),
            rungs.MODEL: replace(level, prune=self.settings.prune or rungs.PRUNED_SHARE),
        }[change.kind]
        return self._change_all(change, level, changed)

    def _stand(self, change: Change, level: _Level) -> tuple[Rung, _Level]:
        """Time the first rung. Its comparison is that of the second rung, if there is one."""
        names = _name(level.tunings)
        if self._climbs_to_compiled:
            names += self._name_next(rungs.CHANGES[rungs.COMPILED], level)[0]
        state = self._compare(change, level, names if len(names) > 1 else names * 2)
        if state.result is None:
            raise Refused(state.reason or "the first rung is refused")
        measured = dict(zip(level.tunings, state.result.contenders, strict=False))
        latency = self._time_requests(change, level, level.tunings)
        shown, times = dict[str, RungContender](), dict[str, Times]()
        for backend, contender in measured.items():
            times[backend] = rungs.find_times(state.result, contender)
            failure = rungs.explain_failure(state.result, contender)
            reason = failure or (None if contender.step_seconds else rungs.TOO_FEW_ROUNDS)
            shown[backend] = _show(state.result, contender, latency.get(backend), kept=failure is None, reason=reason)
        return _make_rung(change, level, shown), replace(level, times=times, shown=shown)

    def _name_next(self, change: Change, level: _Level) -> tuple[list[str], dict[str, str], dict[str, str]]:
        """Return the contenders that a rung of knobs adds, their tunings by backend, and reasons for the others."""
        chosen, reasons = dict[str, str](), dict[str, str]()
        for backend, tuning in level.tunings.items():
            try:
                options = self._ground.apply(change, backend, tuning, level.precision)
                chosen[backend] = self._find_feasible(backend, options, level)
            except Refused as error:
                reasons[backend] = _shorten(str(error), backend)
        return _name(chosen), chosen, reasons

    def _find_feasible(self, backend: str, options: Sequence[str], level: _Level) -> str:
        """Return the first tuning that the whole comparison can honour."""
        refusal = None
        for option in options:
            try:
                Cell(option, self._make_settings(level, [f"{backend}:{option}"] * 2, self.folder)).check()
            except Refused as error:
                refusal = refusal or error
                continue
            return option
        raise refusal or Refused("no tuning goes together here")

    def _change_knobs(self, change: Change, level: _Level) -> tuple[Rung, _Level]:
        added, chosen, reasons = self._name_next(change, level)
        if not chosen:
            return _skip(change, level, "; ".join(f"{name}: {why}" for name, why in reasons.items())), level
        before = _name({backend: level.tunings[backend] for backend in chosen})
        state = self._compare(change, level, before + added)
        result = state.result
        if result is None:
            return _skip(change, level, state.reason or "refused"), level
        latency = self._time_requests(change, level, {**level.tunings, **chosen})
        tunings_now, shown, times = dict(level.tunings), dict[str, RungContender](), dict(level.times)
        latest = dict(level.shown)
        for index, backend in enumerate(chosen):
            old, new = result.contenders[index], result.contenders[len(chosen) + index]
            was, now = rungs.find_times(result, old), rungs.find_times(result, new)
            failure = rungs.explain_failure(result, new)
            ratio = rungs.compare_times(was, now, is_same_rounds=True)
            kept, reason = (False, failure) if failure else rungs.judge_gain(ratio, self.settings.margin)
            shown[backend] = replace(
                _show(result, new, latency.get(backend), kept=kept, reason=reason),
                ratio=None if failure else ratio,
                break_even_steps=rungs.count_break_even_steps(was, now, level.batch_size),
            )
            if kept:
                tunings_now[backend], times[backend], latest[backend] = chosen[backend], now, shown[backend]
            elif was.image_seconds:
                times[backend] = was  # of the same hour as the next rung
        for backend, reason in reasons.items():
            if backend in level.shown:
                shown[backend] = replace(
                    level.shown[backend], kept=None, ratio=None, break_even_steps=None, reason=reason
                )
        shown = {backend: shown[backend] for backend in level.tunings if backend in shown}
        return (
            _make_rung(change, level, shown, is_same_rounds=True),
            replace(level, tunings=tunings_now, times=times, shown=latest),
        )

    def _change_all(self, change: Change, level: _Level, changed: _Level) -> tuple[Rung, _Level]:
        """Climb a rung of all backends. It is kept if they gain together."""
        names = _name(level.tunings)
        state = self._compare(change, changed, names if len(names) > 1 else names * 2)
        result = state.result
        if result is None:
            return _skip(change, changed, state.reason or "refused"), level
        latency = self._time_requests(change, changed, level.tunings)
        measured = dict(zip(level.tunings, result.contenders, strict=False))
        times = {backend: rungs.find_times(result, contender) for backend, contender in measured.items()}
        failures = {backend: rungs.explain_failure(result, contender) for backend, contender in measured.items()}
        ratios = {
            backend: None
            if failures[backend] or backend not in level.times
            else rungs.compare_times(level.times[backend], now, is_same_rounds=False)
            for backend, now in times.items()
        }
        kept, reason = rungs.judge_gain(rungs.join_ratios(list(ratios.values())), self.settings.margin)
        if any(failures.values()):
            kept, reason = False, "another backend failed"
        elif reason and len(ratios) > 1:
            reason = f"{reason}, all backends together"
        shown = {
            backend: replace(
                _show(result, contender, latency.get(backend), kept=kept, reason=failures[backend] or reason),
                ratio=ratios[backend],
                break_even_steps=None
                if backend not in level.times
                else rungs.count_break_even_steps(level.times[backend], times[backend], changed.batch_size),
            )
            for backend, contender in measured.items()
        }
        rung = _make_rung(change, changed, shown)
        if change.kind == rungs.MODEL:
            operations, parameters = count_pruned(result.spec)
            rung = replace(rung, operations=operations, parameters=parameters)
        return rung, replace(changed, times=times, shown=shown) if kept else level

    def _compare(self, change: Change, level: _Level, names: Sequence[str]) -> CellState:
        return self._run(change.name, self._make_settings(level, names, self._make_folder(change.name)))

    def _run(self, name: str, settings: Settings) -> CellState:
        cell = Cell(name, settings)
        state = study.run_alone(cell, self.store, self.command, f"{name}: ")
        if state.result is not None:
            self._device_name = state.result.device_name
        return state

    def _make_folder(self, name: str) -> Path:
        return self.folder / "rungs" / f"{self._count:02}-{name}"

    def _make_settings(self, level: _Level, names: Sequence[str], out: Path) -> Settings:
        return replace(
            self.settings,
            contenders=tuple(names),
            precision=level.precision,
            batch_size=level.batch_size,
            prune=level.prune,
            finetune_epochs=None if level.prune is None else self.settings.finetune_epochs,
            rounds=self.settings.rounds or ROUNDS,
            energy=False,
            out=out,
        )

    def _time_requests(
        self, change: Change, level: _Level, chosen: Mapping[str, str]
    ) -> dict[str, Mapping[str, Mapping[str, float]]]:
        """Return p50, p90 and p99 of requests by backend and batch size. Empty without --latency."""
        if not self.has_latency:
            return {}
        names = _name({backend: rungs.make_request_tuning(tuning) for backend, tuning in chosen.items()})
        settings = replace(
            self._make_settings(level, names if len(names) > 1 else names * 2, self._make_folder(change.name) / INFER),
            task=INFER,
            finetune_epochs=None,
            batch_size=None,
            batch_sizes=REQUEST_SIZES,
            epochs=None,
        )
        state = self._run(f"{change.name}, requests", settings)
        if state.result is None:
            self.on_rung(f"{change.name}: no latency: {state.reason}")
            return {}
        timed = dict[str, Mapping[str, Mapping[str, float]]]()
        for backend, contender in zip(chosen, state.result.contenders, strict=False):
            if failure := rungs.explain_failure(state.result, contender):
                self.on_rung(f"{change.name}: no latency of {contender.name}: {failure}")
                continue
            timed[backend] = {size: _list_quantiles(each) for size, each in (contender.latency or {}).items()}
        return timed


def list_backends(settings: Settings) -> list[str]:
    """Return the backends that climb.

    Raises:
        Refused: as `contenders.parse_backends`.
    """
    texts = settings.contenders or contenders.list_sides(plan.find_workload(settings.workload))
    return contenders.parse_backends(texts, "ladder")


def _list_quantiles(requests: Latency) -> dict[str, float]:
    """Return those quantiles of requests that are known. Few requests have no p99."""
    quantiles = {"p50": requests.p50, "p90": requests.p90, "p99": requests.p99}
    return {name: seconds for name, seconds in quantiles.items() if seconds is not None}


def _name(chosen: Mapping[str, str]) -> list[str]:
    return [f"{backend}:{tuning}" for backend, tuning in chosen.items()]


def _shorten(text: str, backend: str) -> str:
    """Return a refusal without the contender that it begins with."""
    head, colon, rest = text.partition(": ")
    return rest if colon and head.startswith(f"{backend}:") else text


def _skip(change: Change, level: _Level, reason: str) -> Rung:
    return replace(_make_rung(change, level, {}), reason=reason)


def _make_rung(
    change: Change, level: _Level, shown: Mapping[str, RungContender], *, is_same_rounds: bool = False
) -> Rung:
    return Rung(
        name=change.name,
        change=change.words,
        contenders=shown,
        precision=level.precision,
        batch_size=level.batch_size,
        prune=level.prune,
        is_same_rounds=is_same_rounds,
        reason=None,
    )


def _show(
    result: Result,
    contender: Contender,
    latency: Mapping[str, Mapping[str, float]] | None,
    *,
    kept: bool,
    reason: str | None,
) -> RungContender:
    """Return what a rung shows of a contender, without a comparison with the rung before."""
    return RungContender(
        contender=f"{contender.backend}:{contender.tuning}",
        step_seconds=contender.step_seconds.interval if contender.step_seconds else None,
        images_per_second=contender.images_per_second,
        memory=contender.memory,
        compile_seconds=contender.compile_seconds,
        break_even_steps=None,
        latency_seconds=latency or None,
        test_accuracy=contender.training.test_accuracy if contender.training else None,
        agreement=rungs.find_agreement(result, contender)[0],
        kept=kept,
        ratio=None,
        reason=reason,
    )


def write(ladder: Ladder, folder: Path) -> Path:
    """Write ladder.json into a folder and return its path.

    Raises:
        Refused: the file system refuses.
    """
    return result_file.replace(folder / FILE_NAME, typed_json.write(ladder))
