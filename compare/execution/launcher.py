"""Start a plan's children with their environment, their caches of compiled programs and their input files."""

import glob
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from compare.base import knobs, process_group
from compare.base.commands import Command
from compare.base.interface import INFER, ContenderFailed, KnobValues, RunSpec
from compare.execution.child import Child
from compare.execution.ready_children import ReadyChildren
from compare.execution.run_state import ContenderRun
from compare.execution.telemetry import RunProcesses
from compare.machine import cpu, variables
from compare.settings import revisions, tunings
from compare.settings.pair_spec import CODE_ROOT
from compare.settings.plan import Plan
from compare.store import private_folder

# Whether work that is not timed may run beside other work. On a CPU, threads would compete for cores.
BESIDE_OTHERS = {"cpu": False, "cuda": True}

UNCAPTURED, CAPTURED = "uncaptured step", "captured step"
EXPLAINED: Mapping[str, Mapping[str, Any]] = {
    UNCAPTURED: {"graph-capture": False, "steps-per-dispatch": 1},
    CAPTURED: {},
}
"""The purposes of children that profile a step of a captured contender, and the knobs that differ from its own."""

_NUMBERS = itertools.count()  # of caches that belong to one process

_Commands = Sequence[Command[Any]]

Progress = Callable[[str, int, int], None]
"""Takes the current phase, the number of its parts that are done, and their total. It never runs in a timed block."""


@dataclass
class Launcher:
    """Starts children of one plan.

    Attributes:
        plan: the plan that the children run.
        scratch: the folder for their files.
        memory_fraction: the share of the GPU's memory that a child may take, if only its environment can say so.
        processes: the process ids of the run.
        origin: the start of the run on the monotonic clock.
        ready: the children that were started ahead.
        working: the names of the contenders that work now, as far as known.
    """

    plan: Plan
    scratch: Path
    memory_fraction: float | None = None
    processes: RunProcesses = field(default_factory=RunProcesses)
    origin: float = field(default_factory=time.monotonic)
    ready: ReadyChildren = field(default_factory=ReadyChildren)
    working: Sequence[str] = ()

    def now(self) -> float:
        """Return the seconds since the start of the run."""
        return time.monotonic() - self.origin

    def list_processes(self) -> set[int]:
        """Return the ids of this process, its children, and all processes that they have started."""
        return set(cpu.list_family(os.getpid()))

    @property
    def dataset(self) -> Path:
        """The dataset file that all children read."""
        return self.scratch / "dataset.safetensors"

    def dataset_of_seed(self, seed: int) -> Path:
        """Return the dataset file of another seed."""
        return self.scratch / f"dataset-seed-{seed}.safetensors"

    def spec(self, run: ContenderRun, **changes: Any) -> RunSpec:
        """Return the spec that a child of this contender builds, with some fields changed."""
        return self.plan.spec(run.contender, self.dataset, **changes)

    def timed_spec(self, run: ContenderRun, **changes: Any) -> RunSpec:
        """Return the spec of a child that compiles what rounds time, or loads it. Changes keep the program."""
        return self.spec(run, keeps_traces=not self.compiles_every_round(run), **changes)

    def variables(self, run: ContenderRun, knobs_changed: KnobValues | None = None) -> dict[str, str]:
        """Return the variables that every child of a contender gets besides this process's own."""
        values = {**self.plan.knobs(run.contender), **(knobs_changed or {})}
        code = {CODE_ROOT: str(revisions.find_root(run.contender))} if run.contender.code else {}
        return code | variables.make_child_environment(
            run.contender.backend,
            values,
            self.plan.device,
            self.plan.deterministic,
            os.environ,
            self.memory_fraction,
            devices=self.plan.devices_here(values),
            machines=1 if values["parallel"] == knobs.NOT_PARALLEL else self.plan.cluster.count,
        )

    def devices_here(self, run: ContenderRun) -> int:
        """Return how many devices of this machine a contender trains on."""
        return self.plan.devices_here(self.plan.knobs(run.contender))

    def may_load_beside_others(self, run: ContenderRun) -> bool:
        """Tell whether a process that loads its program from the cache may do so beside work that must not wait."""
        return BESIDE_OTHERS[self.plan.device] and self.may_load_ahead(run)

    def may_load_ahead(self, run: ContenderRun) -> bool:
        """Tell whether a process that loads its program from the cache gets the same program beside other work.

        It does not if it searches for kernels again, because other work would mislead the search. On further machines
        JAX keeps no programs.
        """
        searches = tunings.searches_anew(run.contender.backend, self.plan.knobs(run.contender))
        return self.plan.cluster.count == 1 and not searches

    def compiles_every_round(self, run: ContenderRun) -> bool:
        """Tell whether a contender is compiled in every round, to repeat the search for kernels that programs keep."""
        return self.plan.search_anew and self.plan.keeps_search(run.contender)

    @contextmanager
    def child(self, run: ContenderRun, *, purpose: str) -> Generator[Child]:
        """Start a child and wait for its greeting. A failure in the `with` block marks the run and ends the block."""
        with self._greeted_children([run], purpose) as children, children[0] as child:
            yield child

    @contextmanager
    def children(
        self, runs: Sequence[ContenderRun], *, purpose: str
    ) -> Generator[Sequence[AbstractContextManager[Child]]]:
        """Yield the `child` of every run, for one `with` block after the other.

        The children start side by side before that, because an import keeps one core busy for seconds. On several
        machines each child starts with its block, because its processes elsewhere wait only a few minutes.
        """
        if self.plan.cluster.count > 1:
            yield [self.child(run, purpose=purpose) for run in runs]
        else:
            with self._greeted_children(runs, purpose) as children:
                yield children

    @contextmanager
    def _greeted_children(
        self, runs: Sequence[ContenderRun], purpose: str
    ) -> Generator[list[AbstractContextManager[Child]]]:
        children = list[Child]()
        try:
            for run in runs:
                children.append(_or_failure(partial(self.start, run, purpose=purpose)))
            pairs = zip(children, runs, strict=True)
            greeted = [_or_failure(partial(self._greet, child, run)) for child, run in pairs]
            self.ready.settle()
            yield [_use(child, run, purpose) for child, run in zip(greeted, runs, strict=True)]
        finally:
            for child in children:
                child.close()

    def _greet(self, child: Child, run: ContenderRun) -> Child:
        run.versions = child.greet().versions
        return child

    def start(
        self, run: ContenderRun, *, purpose: str, beside: int = 0, first_gpu: int = 0, devices: int | None = None
    ) -> Child:
        """Start a child without waiting for it.

        Args:
            run: the contender.
            purpose: decides which cache of compiled programs the child uses.
            beside: the number of children that work at the same time and share the cores.
            first_gpu: the first of the GPUs that the child sees. It sees as many as its contender trains on.
            devices: the devices of its first session, if known. With one device no further processes start with it.
        """
        contender = run.contender
        values = self.plan.knobs(contender)
        share = self.plan.cluster.share() if values["parallel"] != knobs.NOT_PARALLEL else None
        cache = self._choose_cache(run, purpose)
        added, own = self._environment(run, purpose, cache, beside, devices)
        try:
            if share is not None:
                processes = knobs.count_processes(values["parallel"], self.plan.devices_here(values))
                share.start(contender.backend, contender.package, self.plan.device, added, cache, processes)
                own |= share.environment
            else:
                own |= self._visible_gpus(run, first_gpu)
            child = self.ready.take(_key(run, own)) if share is None else None
            child = child or Child(contender.name, contender.package, own, self.scratch, share, self.plan.deadline)
        except ContenderFailed:
            if share is not None:
                share.end()
            raise
        self.processes.add(child.pid)
        return child

    def start_ahead(self, wanted: Sequence[tuple[ContenderRun, str, int]], *, later: bool = False) -> None:
        """Start children now, as far as none waits already. Each is given by contender, purpose and first GPU.

        With `later` they start when no job must be alone. `start` then takes them. A contender that compiles in every
        round gets none, because each of its children has a cache of its own. On several machines, processes elsewhere
        would wait for too long.
        """
        if self.plan.cluster.count > 1:
            return
        children = list[tuple[Hashable, Callable[[], Child]]]()
        for run, purpose, first_gpu in wanted:
            if run.status == "ok" and not self.compiles_every_round(run):
                own = self._describe_ahead(run, purpose, first_gpu)
                children.append((_key(run, own), partial(self._start_one, run, own)))
        (self.ready.start_later if later else self.ready.start)(children)

    def has_ahead(self, run: ContenderRun, purpose: str, first_gpu: int) -> bool:
        """Tell whether a child waits that `start` will take for these arguments."""
        return self.ready.has(_key(run, self._describe_ahead(run, purpose, first_gpu)))

    def work_ahead(self, run: ContenderRun, purpose: str, first_gpu: int, number: int, commands: _Commands) -> None:
        """Start commands in the child that `start` will take as this `number` for the same arguments, if it waits."""
        if not self.compiles_every_round(run):
            self.ready.work_ahead(_key(run, self._describe_ahead(run, purpose, first_gpu)), number, commands)

    def _describe_ahead(self, run: ContenderRun, purpose: str, first_gpu: int) -> dict[str, str]:
        _, own = self._environment(run, purpose, self._choose_cache(run, purpose), 0, None)
        return own | self._visible_gpus(run, first_gpu)

    @contextmanager
    def cold_child(self, run: ContenderRun) -> Generator[Child]:
        """Start a child that measures usage, while no other imports. Do not wait for its greeting.

        A failure in the `with` block marks the run and ends the block.
        """
        self.ready.settle()
        purpose = "usage"
        _, own = self._environment(run, purpose, self._choose_cache(run, purpose), 0, 1)
        with _use(_or_failure(partial(self._start_one, run, own | self._visible_gpus(run, 0))), run, purpose) as child:
            yield child

    def _start_one(self, run: ContenderRun, own: dict[str, str]) -> Child:
        child = Child(run.contender.name, run.contender.package, own, self.scratch, None, self.plan.deadline)
        self.processes.add(child.pid)
        return child

    def _environment(
        self, run: ContenderRun, purpose: str, cache: str | None, beside: int, devices: int | None
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables for a contender's processes on all machines, and those for its child here."""
        backend = run.contender.backend
        values = self.plan.knobs(run.contender)
        added = self.variables(run, EXPLAINED.get(purpose))
        run.variables = dict(added)  # without folders and without the shares of cores and GPUs, which follow
        if purpose == "matching":
            added |= variables.make_matching_environment(backend)
        if purpose == "round" and values.get("compile"):
            # Torch's compiler takes as long to import as torch. Elsewhere the import would change what memory is idle.
            added[variables.COMPILES] = "1"
        if purpose != "usage":  # there a cold start is timed, and memory is measured, as users have them
            added[variables.QUICK_IMPORT] = "1"
        if purpose in EXPLAINED:
            captured = purpose == CAPTURED
            added |= variables.make_explained_environment(backend, added, self.plan.device, captured=captured)
        if beside:
            added |= variables.make_thread_environment(max(1, cpu.count_usable_cores() // (beside + 1)), os.environ)
        kept = private_folder.find_programs(self.scratch / "cache-kept", self.plan.store)
        folder = kept if cache is None else self.scratch / cache
        own = added | variables.make_cache_environment(backend, folder, kept)
        own |= variables.make_temporary_environment(self.scratch)
        measures_cold_start = purpose == "usage" and self.plan.task == INFER
        if not measures_cold_start:
            own |= variables.make_bytecode_environment(backend, kept)
        processes = knobs.count_processes(values["parallel"], self.plan.devices_here(values))
        if processes > 1 and devices != 1:
            own[process_group.FURTHER] = json.dumps({"local_world_size": processes, "device": self.plan.device})
        return added, own

    def _visible_gpus(self, run: ContenderRun, first_gpu: int) -> dict[str, str]:
        if self.plan.device != "cuda":
            return {}
        return process_group.make_visible_environment(range(first_gpu, first_gpu + self.devices_here(run)), os.environ)

    def find_programs(self, run: ContenderRun) -> Path:
        """Return the folder of a contender's compiled programs, in which its children look."""
        return self.scratch / f"cache-{run.contender.file_name}"

    def _choose_cache(self, run: ContenderRun, purpose: str) -> str | None:
        """Return the name of the folder for compiled programs, or None for the user's own cache.

        Certificates use the user's own cache, beside other work. So do explanations of JAX's captured steps, which
        compile other programs than rounds. Programs that are timed have a folder for each contender, so that a search
        for kernels is its own. A contender that compiles in every round has a new one.
        """
        if purpose in ("matching", "certificate") or (purpose in EXPLAINED and run.contender.backend == "jax"):
            return None
        if purpose != "round" or not self.compiles_every_round(run):
            return self.find_programs(run).name
        name = run.contender.name
        for old in self.scratch.glob(f"cache-*-{glob.escape(name)}"):
            shutil.rmtree(old, ignore_errors=True)
        return f"cache-{next(_NUMBERS)}-{name}"


def _key(run: ContenderRun, environment: Mapping[str, str]) -> Hashable:
    """Return the key of children that can stand for each other."""
    return run.contender.name, frozenset(environment.items())


def _or_failure(start: Callable[[], Child]) -> Child:
    """Return the child, or a stand-in that raises the failure when the contender takes its turn."""
    try:
        return start()
    except ContenderFailed as failure:
        return cast(Child, _FailedChild(failure))


@contextmanager
def _use(child: Child, run: ContenderRun, purpose: str) -> Generator[Child]:
    try:
        yield child
    except ContenderFailed as failure:
        run.fail(failure, purpose)
    finally:
        child.close()


class _FailedChild:
    """Stands for a child that did not come up. Every call raises the reason."""

    def __init__(self, failure: ContenderFailed) -> None:
        self._failure = failure

    def __getattr__(self, name: str) -> NoReturn:
        raise self._failure

    def close(self) -> None:
        """Do nothing."""
