"""`samestep fit`: the largest batch that each contender can train, and the least memory that a batch needs."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from compare.base.interface import ContenderFailed, Refused
from compare.data import datasets, synthetic
from compare.execution import batch_trial, bisection
from compare.execution.batch_trial import SMALLEST_BATCH, Tester
from compare.execution.bisection import Bracket
from compare.execution.launcher import Progress
from compare.machine import environment, nvml
from compare.results import result_file
from compare.settings import plan
from compare.settings.contenders import Contender
from compare.settings.options import Settings
from compare.settings.plan import Plan

SCHEMA_VERSION = 1
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Task:
    """What `run` searches for. Build it with `make`, which refuses what cannot be done.

    Attributes:
        plan: contenders, workload, the asked batch and the rest, as for a comparison.
        limit_bytes: the memory in which the largest batch is searched for.
        most_bytes: the upper end of the search for the least memory.
        most_images: the largest batch that is tried.
        device_bytes: the GPU's memory; None on a CPU.
        environment: `compare.machine.environment.describe()`.
    """

    plan: Plan
    limit_bytes: int
    most_bytes: int
    most_images: int
    device_bytes: int | None
    environment: Mapping[str, Any]


@dataclass
class Fitted:
    """What was found out about one contender; a bracket is None where its search did not end."""

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
    """Return the task for what a user asks for.

    `memory` in MiB limits the search for the largest batch. Without it the limit is all of a GPU's memory, or half of
    what is available on a CPU, where nothing else would end the search before the machine swaps.

    Raises:
        Refused: for anything that could not be honoured, before any process starts.
    """
    unread = datasets.make_empty("synthetic images, one batch")  # every try makes its own
    untimed = replace(settings, rounds=None, agreement=False)
    chosen = plan.make(untimed, dataset=unread, least_contenders=1)
    most_images = synthetic.most(chosen.workload.model.image)
    if chosen.batch_size > most_images:
        raise Refused(f"--batch-size {chosen.batch_size} is not allowed; allowed: 2 to {most_images} such images")
    described = environment.describe()
    device_bytes = _gpu_bytes(described) if chosen.device == "cuda" else None
    if device_bytes is None and sys.platform != "linux":
        raise Refused("--device cpu: only Linux limits the memory of a process; allowed here: --device cuda")
    most_bytes = psutil.virtual_memory().available // 2 if device_bytes is None else device_bytes
    limit = most_bytes if memory is None else _checked(memory, device_bytes or psutil.virtual_memory().total)
    return Task(chosen, limit, most_bytes, most_images, device_bytes, described)


def run(task: Task, progress: Progress) -> list[Fitted]:
    """Search for every contender in turn; one that fails leaves the others their own search."""
    found = [Fitted(each, Tester(task.plan, each, task.device_bytes)) for each in task.plan.contenders]
    for index, fitted in enumerate(found):

        def told(batch_size: int, limit: int | None, fitted: Fitted = fitted, index: int = index) -> bool:
            within = "" if limit is None else f" in {limit / MEBIBYTE:,.0f} MiB"
            progress(f"{fitted.contender.name}: batch {batch_size:,}{within}", index, len(found))
            return fitted.tester.fits(batch_size, limit)

        try:
            _search(task, fitted, told)
        except ContenderFailed as failure:
            fitted.status, fitted.reason = failure.status, failure.reason
    progress("fit", len(found), len(found))
    return found


def _search(task: Task, fitted: Fitted, fits: Callable[[int, int | None], bool]) -> None:
    size = task.plan.batch_size
    if task.plan.device == "cpu" and not fits(SMALLEST_BATCH, None):
        raise ContenderFailed("oom", f"batch {SMALLEST_BATCH}, without a limit: {fitted.tester.tries[-1].reason}")
    fitted.batch = bisection.find_largest(
        lambda images: fits(images, task.limit_bytes), least=SMALLEST_BATCH, most=task.most_images, first=size
    )
    fitted.memory = bisection.find_smallest(
        lambda limit: fits(size, limit), least=MEBIBYTE, most=task.most_bytes, step=MEBIBYTE
    )
    lacking = [
        f"batch {images:,} does not fit in {limit / MEBIBYTE:,.0f} MiB"
        for bracket, images, limit in (
            (fitted.batch, SMALLEST_BATCH, task.limit_bytes),
            (fitted.memory, size, task.most_bytes),
        )
        if bracket.fits is None
    ]
    if lacking:
        fitted.status, fitted.reason = "oom", "; ".join(lacking)


def result(task: Task, found: Sequence[Fitted], command: Sequence[str]) -> dict[str, Any]:
    """Return the object of `fit.json`."""
    chosen = task.plan
    return {
        **result_file.head(SCHEMA_VERSION, command),
        "spec": {
            "workload": chosen.workload.name,
            "contenders": [contender.name for contender in chosen.contenders],
            "image": list(chosen.workload.model.image),
            "batch_size": chosen.batch_size,
            "precision": chosen.precision,
            "device": chosen.device,
            "seed": chosen.seed,
            "steps": batch_trial.STEPS,
            "memory_limit_bytes": task.limit_bytes,
            "most_memory_bytes": task.most_bytes,
            "most_images": task.most_images,
        },
        "environment": task.environment,
        "contenders": [_contender(task, fitted) for fitted in found],
    }


def write(result: Mapping[str, Any], folder: Path) -> Path:
    """Write `folder/fit.json` atomically; return that path. Raises Refused as `compare.results.result_file.replace`."""
    return result_file.replace(folder / result_file.FIT_NAME, result)


def failed(result: Mapping[str, Any]) -> bool:
    """Whether any contender stopped working, or could not train what was asked."""
    return any(contender["status"] != "ok" for contender in result["contenders"])


def _contender(task: Task, fitted: Fitted) -> dict[str, Any]:
    """`largest_batch` of a search that a failure ended is the largest that had trained by then, hence not exact."""
    tries, batch, memory = fitted.tester.tries, fitted.batch, fitted.memory
    trained = [each.batch_size for each in tries if each.fitted and each.memory_limit_bytes == task.limit_bytes]
    return {
        "name": fitted.contender.name,
        "backend": fitted.contender.backend,
        "tuning": fitted.contender.tuning,
        "status": fitted.status,
        "reason": fitted.reason,
        "versions": fitted.tester.versions,
        "largest_batch": batch.fits if batch else max(trained, default=None),
        "largest_batch_exact": batch is not None and batch.exact,
        "smallest_failed_batch": batch and batch.fails,
        "stopped_by": fitted.stopped_by,
        "smallest_memory_bytes": memory and memory.fits,
        "largest_failed_memory_bytes": memory and memory.fails,
        "tries": [asdict(each) for each in tries],
    }


def _gpu_bytes(described: Mapping[str, Any]) -> int:
    """Return the memory of the GPU that both frameworks train on."""
    gpu, name = nvml.find_first(described["nvidia"]["gpus"]), nvml.first_name()
    if gpu is None:
        raise Refused(f"CUDA_VISIBLE_DEVICES begins with {name!r}, which NVML does not list; allowed: an index or UUID")
    if gpu["mig"]:
        raise Refused(f"GPU {name} is divided (MIG), and the size of a part is not known; allowed: a whole GPU")
    if not gpu["memory_bytes"]:
        raise Refused(f"NVML does not tell how much memory GPU {name} has, which a limit is a fraction of")
    return gpu["memory_bytes"]


def _checked(mebibytes: int, total_bytes: int) -> int:
    most = total_bytes // MEBIBYTE
    if not 1 <= mebibytes <= most:
        raise Refused(f"--memory {mebibytes} is not allowed; allowed: a whole number of MiB from 1 to {most}")
    return mebibytes * MEBIBYTE
