"""Keep compiled programs from run to run, the timed ones too, and the compile time that was last measured.

An entry is the whole cache of compiled programs of one contender. It is found again by everything that decides the
programs. A run unpacks it into a folder of its own, so that no run changes another one's programs.
"""

import json
import shutil
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from compare.base import strict_json
from compare.base.interface import Refused
from compare.execution import store_keys
from compare.execution.launcher import Launcher
from compare.execution.run_state import ColdCompile, ContenderRun, KeptProgram, RunState
from compare.store import private_folder
from compare.store.entries import Store

KIND, TIMES = "programs", "compile-times"
"""The kinds of these entries in the store."""

_ARCHIVE, _TIMES_FILE = "programs.tar", "times.json"
_MEASURE = "--cold-compile measures it"
_HOLDS_WEIGHTS = ("constant-weights", "exported")


@dataclass
class KeptPrograms:
    """The kept programs of one run.

    Attributes:
        launcher: knows the folders where children find programs.
        store: where programs are kept; None if this run keeps none.
        facts: everything that decides the programs, by contender.
        reason: why this run keeps none, or None.
        packed: the sizes of the files that were kept last, by contender.
    """

    launcher: Launcher
    store: Store | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    reason: str | None = None
    packed: dict[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])

    @classmethod
    def find(cls, launcher: Launcher, state: RunState) -> "KeptPrograms":
        """Unpack the kept programs of every contender for this run's children.

        With `--cold-compile` nothing is found. A contender that compiles in every round has nothing to keep.
        """
        plan = launcher.plan
        if reason := store_keys.explain_unknown_facts(plan, state.pairing):
            return cls(launcher, reason=reason)
        try:
            store = Store(private_folder.find_root(plan.store))
            runs = [run for run in state.runs if not launcher.compiles_every_round(run)]
            kept = cls(launcher, store, {run.contender.name: list_facts(launcher, state, run) for run in runs})
        except (Refused, OSError, RuntimeError) as error:
            return cls(launcher, reason=str(error))
        for run in runs if not plan.cold_compile else ():
            kept._unpack(store, run)
        return kept

    def note_times(self, state: RunState) -> None:
        """Note each contender's compile time after its first steps: this run's, or the last one measured here."""
        for run in state.runs:
            if run.warm_up is None:
                continue
            if run.program_kept is None and run.has_compiled_alone:
                times = run.warm_up
                run.cold = ColdCompile(
                    times.compile_seconds, times.first_step_seconds, times.warmup_seconds, times.steady
                )
                self._try(run, self._write_times)
            else:
                self._try(run, self._read_times)
            if run.cold is None:
                run.cold_reason = self._explain_missing_time(run)

    def add(self, state: RunState) -> None:
        """Keep the programs of every contender that has compiled them in this run."""
        for run in state.alive:
            if run.program_kept is None and run.warm_up is not None:
                self._try(run, self._pack)

    def _try(self, run: ContenderRun, action: Callable[[Store, ContenderRun], None]) -> None:
        """Do something with the store. What cannot be kept is compiled again, and changes no result."""
        if self.store is not None and run.contender.name in self.facts:
            try:
                action(self.store, run)
            except (OSError, Refused) as error:
                self.reason = str(error)

    def _unpack(self, store: Store, run: ContenderRun) -> None:
        entry = store.find(KIND, self.facts[run.contender.name])
        if entry is None:
            return
        folder = self.launcher.find_programs(run)
        try:
            with tarfile.open(entry.folder / _ARCHIVE) as archive:
                archive.extractall(folder, filter="data")
        except (OSError, tarfile.TarError):
            shutil.rmtree(folder, ignore_errors=True)
            store.remove(KIND, self.facts[run.contender.name])
            return
        run.program_kept = KeptProgram(entry.key, entry.created)

    def _pack(self, store: Store, run: ContenderRun) -> None:
        name, folder = run.contender.name, self.launcher.find_programs(run)
        sizes = {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        if not sizes or sizes == self.packed.get(name):
            return

        def write(target: Path) -> None:
            with tarfile.open(target / _ARCHIVE, "w") as archive:
                archive.add(folder, arcname=".")

        store.replace(KIND, self.facts[name], write, self._describe(run))
        self.packed[name] = sizes

    def _write_times(self, store: Store, run: ContenderRun) -> None:
        assert run.cold is not None
        facts = self.facts[run.contender.name]
        store.replace_json(TIMES, facts, _TIMES_FILE, asdict(run.cold), self._describe(run))

    def _read_times(self, store: Store, run: ContenderRun) -> None:
        entry = store.find(TIMES, self.facts[run.contender.name])
        if entry is not None:
            try:
                cold = strict_json.decode(ColdCompile, json.loads((entry.folder / _TIMES_FILE).read_text("utf-8")))
            except (ValueError, TypeError):
                store.remove(TIMES, self.facts[run.contender.name])
                return
            run.cold = replace(cold, measured=entry.created)

    def _explain_missing_time(self, run: ContenderRun) -> str:
        if run.settings.get("compile") is False:
            return "nothing is compiled: it runs op by op"
        how = "was kept from an earlier run" if run.program_kept else "was compiled beside other work"
        unkept = f" ({self.reason})" if self.reason else ""
        return f"the program {how}{unkept}; {_MEASURE}"

    def _describe(self, run: ContenderRun) -> str:
        plan = self.launcher.plan
        return f"{plan.workload.name}, {plan.precision}, {plan.device}: {run.contender.name}"


def list_facts(launcher: Launcher, state: RunState, run: ContenderRun) -> dict[str, Any]:
    """Return everything that decides the programs of a contender, as JSON types.

    Values of data decide no program. The number and the form of the images do. Weights decide one that holds them.
    """
    plan = launcher.plan
    holds_weights = any(plan.knobs(run.contender).get(name) for name in _HOLDS_WEIGHTS)
    return {
        **store_keys.list_shared_facts(plan, state.pairing, run),
        "images": [list(plan.dataset.train.images.shape), str(plan.dataset.train.images.dtype)],
        "tests": len(plan.dataset.test.labels),
        "task": [plan.task, list(plan.batch_sizes or ())],
        "weights": [plan.seed, store_keys.hash_weights(plan)] if holds_weights else None,
        "backend": run.contender.backend,
        "spec": strict_json.encode(launcher.spec(run, data="", weights=None, seed=0)),
        "variables": launcher.variables(run),
    }
