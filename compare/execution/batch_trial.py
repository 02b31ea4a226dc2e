"""Try whether a batch trains in a fresh process within a memory limit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from compare.base import scratch
from compare.base.commands import CompilingBlock, Open
from compare.base.interface import ContenderFailed
from compare.data import dataset_file, datasets
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun
from compare.settings.contenders import Contender
from compare.settings.plan import Plan

STEPS = 3
"""Training steps of a try, or one dispatch if that has more."""

SMALLEST_BATCH = 2  # batch norm has no variance over one image


@dataclass(frozen=True)
class Try:
    """One fresh process: its batch and limit, whether it trained, and if not, why."""

    batch_size: int
    memory_limit_bytes: int | None
    fitted: bool
    reason: str | None


@dataclass
class Tester:
    """Tries batches for one contender and remembers the tries.

    Every try starts in an empty cache of compiled programs and trains on one batch of synthetic images. So it needs the
    memory of the step and of the compiler. On a CPU that memory varies from process to process, because threads
    allocate side by side. Close to the limit, equal tries can end differently.
    """

    plan: Plan
    contender: Contender
    device_bytes: int | None
    tries: list[Try] = field(default_factory=list[Try])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    def fits(self, batch_size: int, limit_bytes: int | None) -> bool:
        """Try a batch and tell whether it fits.

        It does not fit if the try ends with status `oom`. Under the limit of a CPU, status `crash` means the same.
        Frameworks answer a refused allocation with std::bad_alloc, an abort, or an error that hides its cause. So first
        try a contender without a limit, to know that it trains at all.

        Raises:
            ContenderFailed: for any other failure.
        """
        run = self._train(batch_size, limit_bytes)
        fitted = run.status == "ok"
        reason = None if fitted else f"{run.status}: {run.reason}"
        self.tries.append(Try(batch_size, limit_bytes, fitted, reason))
        self.versions = self.versions or run.versions
        limited = self.plan.device == "cpu" and limit_bytes is not None
        if fitted or run.status == "oom" or (run.status == "crash" and limited):
            return fitted
        raise ContenderFailed(run.status, f"batch {batch_size:,}: {run.reason}")

    def _train(self, batch_size: int, limit_bytes: int | None) -> ContenderRun:
        plan, run = self.plan, ContenderRun(self.contender)
        fraction = limit_bytes / self.device_bytes if limit_bytes is not None and self.device_bytes else None
        with scratch.open_folder() as folder:
            launcher = Launcher(plan, folder, memory_fraction=fraction)
            workload, seed = plan.workload, plan.seed
            batch = datasets.synthesise(workload, workload.model.image, seed=seed, train=batch_size, test=0)
            dataset_file.save(batch, launcher.dataset)
            spec = launcher.spec(run, batch_size=batch_size, memory_limit_bytes=limit_bytes)
            with launcher.child(run, purpose="try") as child:
                unit = child.call(Open(spec)).steps_per_dispatch
                child.call(CompilingBlock(unit * -(-STEPS // unit)))
        return run


def find_smaller_batch(plan: Plan, contender: Contender) -> str:
    """Try half of the plan's batch, a quarter and so on, and say in words which one trains.

    The text is empty if a try fails for another reason than memory, or if no smaller batch can be split.
    """
    tester, size = Tester(plan, contender, None), plan.batch_size
    parts = plan.accumulate * plan.devices  # equal parts of a batch
    least = SMALLEST_BATCH * parts
    if size <= least:
        return ""
    while size > least:
        size = max(least, size // 2 // parts * parts)
        try:
            if tester.fits(size, None):
                return f"batch {size:,} trains"
        except ContenderFailed:
            return ""
    return f"not even batch {least:,} trains"
