"""Starting a plan's children: their environment, caches and input files."""

import glob
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from compare.base import knobs, process_group
from compare.base.interface import ContenderFailed
from compare.execution.child import Child
from compare.execution.run_state import ContenderRun
from compare.execution.telemetry import Family
from compare.machine import cpu, variables
from compare.settings import tunings
from compare.settings.plan import Plan

# What is not timed may go on beside others: on a CPU, their threads would wait for each other's cores.
BESIDE_OTHERS = {"cpu": False, "cuda": True}

_NUMBERS = itertools.count()  # of caches that one process alone has

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how many parts of it are done, and out of how many; never while a block is timed."""


@dataclass
class Launcher:
    """Starts children of one plan with their environment and compilation caches.

    `memory_fraction` is the part of the GPU's memory that a child may take, where only its environment can say so.
    """

    plan: Plan
    scratch: Path
    memory_fraction: float | None = None
    family: Family = field(default_factory=Family)
    origin: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Return the seconds since the run's start."""
        return time.monotonic() - self.origin

    @property
    def dataset(self) -> Path:
        """The dataset file that all children read."""
        return self.scratch / "dataset.safetensors"

    def dataset_of_seed(self, seed: int) -> Path:
        """The dataset file of another seed."""
        return self.scratch / f"dataset-seed-{seed}.safetensors"

    def spec(self, run: ContenderRun, **changes: Any) -> dict[str, Any]:
        """Return what a child of this contender is told to build, as JSON types."""
        return self.plan.spec(run.contender, self.dataset, **changes).to_json()

    def devices_here(self, run: ContenderRun) -> int:
        """Return how many devices of this machine a contender trains on."""
        return self.plan.devices_here(self.plan.knobs(run.contender))

    def may_load_beside_others(self, run: ContenderRun) -> bool:
        """Whether a contender's program is the same where others are at work when a process finds it in the cache.

        Where kernels are searched for again, they would mislead the search. On further machines, JAX keeps no programs.
        """
        anew = tunings.searches_anew(run.contender.backend, self.plan.knobs(run.contender))
        return BESIDE_OTHERS[self.plan.device] and self.plan.cluster.count == 1 and not anew

    def compiles_anew(self, run: ContenderRun) -> bool:
        """Whether a contender is compiled in every round, for the search for kernels that its program would keep."""
        return self.plan.search_anew and self.plan.keeps_search(run.contender)

    @contextmanager
    def child(self, run: ContenderRun, *, purpose: str) -> Generator[Child]:
        """Start a greeted child for the `with` block; a failure in it marks the run and ends the block."""
        with self._greeted([run], purpose) as children, children[0] as child:
            yield child

    @contextmanager
    def children(
        self, runs: Sequence[ContenderRun], *, purpose: str
    ) -> Generator[Sequence[AbstractContextManager[Child]]]:
        """Yield every run's `child`, for one `with` block after the other.

        They are started and greeted before that, side by side, for an import keeps one core busy for seconds. On
        several machines each is started when its block begins: its processes elsewhere wait for some minutes only.
        """
        if self.plan.cluster.count > 1:
            yield [self.child(run, purpose=purpose) for run in runs]
        else:
            with self._greeted(runs, purpose) as children:
                yield children

    @contextmanager
    def _greeted(self, runs: Sequence[ContenderRun], purpose: str) -> Generator[list[AbstractContextManager[Child]]]:
        children = list[Child]()
        try:
            for run in runs:
                children.append(_or_failure(partial(self.start, run, purpose=purpose)))
            pairs = zip(children, runs, strict=True)
            greeted = [_or_failure(partial(self._greet, child, run)) for child, run in pairs]
            yield [_used(child, run, purpose) for child, run in zip(greeted, runs, strict=True)]
        finally:
            for child in children:
                child.close()

    def _greet(self, child: Child, run: ContenderRun) -> Child:
        run.versions = child.greet(self.plan.deadlines["start"])["versions"]
        return child

    def start(
        self, run: ContenderRun, *, purpose: str, beside: int = 0, first_gpu: int = 0, devices: int | None = None
    ) -> Child:
        """Start a child without waiting for it; it shares the cores with those `beside` it that work when it does.

        It sees as many GPUs as its contender trains on, from `first_gpu` on. Its further processes start with it, but
        not where its first session is known to be of one of the `devices`.
        """
        contender = run.contender
        values = self.plan.knobs(run.contender)
        share = self.plan.cluster.share() if values["parallel"] != knobs.NOT_PARALLEL else None
        here = self.plan.devices_here(values)
        added = variables.child_environment(
            contender.backend,
            values,
            self.plan.device,
            self.plan.deterministic,
            os.environ,
            self.memory_fraction,
            devices=here,
            machines=1 if share is None else self.plan.cluster.count,
        )
        run.variables = dict(added)  # what follows are folders, and the parts of cores and of GPUs
        # The training run compiles into an empty cache (cold); the other phases find its programs there. Where nobody
        # asks for that time, contenders of a framework share one. What is compiled in every round has one for itself.
        # Certificates report no compile time, and keep their programs from run to run.
        kept = purpose in ("matching", "certificate")
        named = f"cache-{contender.name if self.plan.cold_compile else contender.backend}"
        if purpose == "round" and self.compiles_anew(run):
            for left in self.scratch.glob(f"cache-*-{glob.escape(contender.name)}"):  # of the round before
                shutil.rmtree(left, ignore_errors=True)
            named = f"cache-{next(_NUMBERS)}-{contender.name}"
        if purpose == "matching":
            added |= variables.matching_environment(contender.backend)
        if beside:
            added |= variables.thread_environment(max(1, cpu.count_usable_cores() // (beside + 1)), os.environ)
        cache = variables.find_cache_folder(self.scratch / "cache-kept") if kept else self.scratch / named
        own = added | variables.cache_environment(contender.backend, cache)
        processes = knobs.processes(values["parallel"], here)
        if processes > 1 and devices != 1:
            own[process_group.FURTHER] = json.dumps({"here": processes, "device": self.plan.device})
        if share is None and self.plan.device == "cuda":
            own |= process_group.visible_environment(range(first_gpu, first_gpu + here), os.environ)
        try:
            if share is not None:
                folder = None if kept else named
                share.start(contender.backend, contender.package, self.plan.device, added, folder, processes)
                own |= share.environment
            child = Child(contender.name, contender.package, own, self.scratch, share)
        except ContenderFailed:
            if share is not None:
                share.end()
            raise
        self.family.add(child.pid)
        return child


def _or_failure(start: Callable[[], Child]) -> Child:
    """Return what was started, or what stands for it: a failure is its contender's, when that takes its turn."""
    try:
        return start()
    except ContenderFailed as failure:
        return cast(Child, _NeverStarted(failure))


@contextmanager
def _used(child: Child, run: ContenderRun, purpose: str) -> Generator[Child]:
    try:
        yield child
    except ContenderFailed as failure:
        run.status, run.reason = failure.status, f"{purpose}: {failure.reason}"
    finally:
        child.close()


class _NeverStarted:
    """Stands for a child that did not come up: whatever is asked of it raises why."""

    def __init__(self, failure: ContenderFailed) -> None:
        self._failure = failure

    def __getattr__(self, name: str) -> NoReturn:
        raise self._failure

    def close(self) -> None:
        """Has nothing to end."""
