"""Search for the largest batch that each contender can train, and for the smallest memory that a batch needs."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import psutil

from compare.base.interface import ContenderFailed, Refused
from compare.data import datasets, synthetic
from compare.execution import bisection
from compare.execution.batch_trial import SMALLEST_BATCH, Tester
from compare.execution.bisection import Bracket
from compare.execution.launcher import Progress
from compare.machine import environment, nvml
from compare.machine.environment import EnvironmentFacts
from compare.settings import plan, tasks
from compare.settings.contenders import Contender
from compare.settings.options import Settings
from compare.settings.plan import Plan

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Task:
    """The searches that `run` makes. Build a task with `make`, which refuses impossible ones.

    Attributes:
        plan: contenders, workload, batch and the rest, as for a comparison.
        limit_bytes: the memory in which the largest batch is searched for.
        most_bytes: the upper end of the search for the smallest memory.
        most_images: the largest batch that is tried.
        device_bytes: the GPU's memory; None on a CPU.
        environment: `compare.machine.environment.describe()`.
    """

    plan: Plan
    limit_bytes: int
    most_bytes: int
    most_images: int
    device_bytes: int | None
    environment: EnvironmentFacts


@dataclass
class Search:
    """The searches of one contender. A search that was not completed has no bracket."""

    contender: Contender
    tester: Tester
    status: str = "ok"
    reason: str | None = None
    batch: Bracket | None = None
    memory: Bracket | None = None

    @property
    def stopped_by(self) -> str:
        """What ended the search for the largest batch: `memory`, `cap` (`Task.most_images`) or a failure's status."""
        if self.batch is None:
            return self.status
        return "cap" if self.batch.fails is None else "memory"


def make(settings: Settings, *, memory: int | None = None) -> Task:
    """Return the task for a user's settings.

    Args:
        settings: the settings of a user.
        memory: MiB in which the largest batch is searched for. The default is all of a GPU's memory. On a CPU it is
            half of the available memory, because a larger search would make the machine swap.

    Raises:
        Refused: for impossible settings, before any process starts.
    """
    tasks.refuse_inference(settings, "fit")
    unread = datasets.make_empty("synthetic images, one batch")  # every try generates its own
    untimed = replace(settings, timed=False, agreement=False)
    chosen = plan.make(untimed, dataset=unread, least_contenders=1)
    most_images = synthetic.count_most_images(chosen.workload.model.image)
    if chosen.batch_size > most_images:
        raise Refused(f"--batch-size {chosen.batch_size} is not allowed; allowed: 2 to {most_images} such images")
    facts = environment.describe()
    device_bytes = _gpu_bytes(facts) if chosen.device == "cuda" else None
    if device_bytes is None and sys.platform != "linux":
        raise Refused("--device cpu: only Linux limits the memory of a process; allowed here: --device cuda")
    most_bytes = psutil.virtual_memory().available // 2 if device_bytes is None else device_bytes
    limit = most_bytes if memory is None else _memory_bytes(memory, device_bytes or psutil.virtual_memory().total)
    return Task(chosen, limit, most_bytes, most_images, device_bytes, facts)


def run(task: Task, progress: Progress) -> list[Search]:
    """Make the searches of every contender in turn. A contender that fails does not stop the others."""
    searches = [Search(each, Tester(task.plan, each, task.device_bytes)) for each in task.plan.contenders]
    for index, search in enumerate(searches):

        def fits(batch_size: int, limit: int | None, search: Search = search, index: int = index) -> bool:
            within = "" if limit is None else f" in {limit / MEBIBYTE:,.0f} MiB"
            progress(f"{search.contender.name}: batch {batch_size:,}{within}", index, len(searches))
            return search.tester.fits(batch_size, limit)

        try:
            _run_search(task, search, fits)
        except ContenderFailed as failure:
            search.status, search.reason = failure.status, failure.reason
    progress("fit", len(searches), len(searches))
    return searches


def _run_search(task: Task, search: Search, fits: Callable[[int, int | None], bool]) -> None:
    size = task.plan.batch_size
    if task.plan.device == "cpu" and not fits(SMALLEST_BATCH, None):
        raise ContenderFailed("oom", f"batch {SMALLEST_BATCH}, without a limit: {search.tester.tries[-1].reason}")
    search.batch = bisection.find_largest(
        lambda images: fits(images, task.limit_bytes), least=SMALLEST_BATCH, most=task.most_images, first=size
    )
    search.memory = bisection.find_smallest(
        lambda limit: fits(size, limit), least=MEBIBYTE, most=task.most_bytes, step=MEBIBYTE
    )
    problems = [
        f"batch {images:,} does not fit in {limit / MEBIBYTE:,.0f} MiB"
        for bracket, images, limit in (
            (search.batch, SMALLEST_BATCH, task.limit_bytes),
            (search.memory, size, task.most_bytes),
        )
        if bracket.fits is None
    ]
    if problems:
        search.status, search.reason = "oom", "; ".join(problems)


def _gpu_bytes(facts: EnvironmentFacts) -> int:
    """Return the memory of the GPU that both frameworks train on."""
    gpu, name = nvml.find_first(facts["nvidia"]["gpus"]), nvml.name_first_gpu()
    if gpu is None:
        raise Refused(f"CUDA_VISIBLE_DEVICES begins with {name!r}, which NVML does not list; allowed: an index or UUID")
    if gpu["mig"]:
        raise Refused(f"GPU {name} is divided (MIG), and the size of its part is unknown; allowed: a whole GPU")
    if not gpu["memory_bytes"]:
        raise Refused(f"NVML does not tell how much memory GPU {name} has, but a limit needs it")
    return gpu["memory_bytes"]


def _memory_bytes(mebibytes: int, total_bytes: int) -> int:
    most = total_bytes // MEBIBYTE
    if not 1 <= mebibytes <= most:
        raise Refused(f"--memory {mebibytes} is not allowed; allowed: a whole number of MiB from 1 to {most}")
    return mebibytes * MEBIBYTE
