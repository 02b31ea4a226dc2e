"""One try of `samestep fit`: does a batch train in a fresh process within a memory limit?"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare.base.interface import ContenderFailed
from compare.data import dataset_file, datasets
from compare.execution.launcher import Launcher
from compare.execution.run_state import ContenderRun
from compare.settings.contenders import Contender
from compare.settings.plan import Plan

STEPS = 3
"""Training steps of a try; more where one dispatch takes more."""

SMALLEST_BATCH = 2  # batch norm has no variance over one image


@dataclass(frozen=True)
class Try:
    """One fresh process: what it was given, whether it trained, and if not, why."""

    batch_size: int
    memory_limit_bytes: int | None
    fitted: bool
    reason: str | None


@dataclass
class Tester:
    """Makes tries for one contender and remembers them.

    Every try starts cold, in an empty cache of compiled programs, and trains on one batch of synthetic images, so that
    what it needs is the step's memory and the compiler's. On a CPU that is not the same in every process: threads
    allocate side by side, so close to the edge tries with the same numbers can end differently.
    """

    plan: Plan
    contender: Contender
    device_bytes: int | None
    tries: list[Try] = field(default_factory=list[Try])
    versions: dict[str, str] = field(default_factory=dict[str, str])

    def fits(self, batch_size: int, limit_bytes: int | None) -> bool:
        """Try it.

        Status `oom` means that it does not fit. Under the limit of a CPU so does `crash`: frameworks answer a refused
        allocation with std::bad_alloc, with an abort, or with an error of their own that hides its cause. Let a
        contender train without a limit first, so that it is known to train at all.

        Raises:
            ContenderFailed: for any other failure.
        """
        run = self._run(batch_size, limit_bytes)
        fitted = run.status == "ok"
        reason = None if fitted else f"{run.status}: {run.reason}"
        self.tries.append(Try(batch_size, limit_bytes, fitted, reason))
        self.versions = self.versions or run.versions
        limited = self.plan.device == "cpu" and limit_bytes is not None
        if fitted or run.status == "oom" or (run.status == "crash" and limited):
            return fitted
        raise ContenderFailed(run.status, f"batch {batch_size:,}: {run.reason}")

    def _run(self, batch_size: int, limit_bytes: int | None) -> ContenderRun:
        plan, run = self.plan, ContenderRun(self.contender)
        fraction = limit_bytes / self.device_bytes if limit_bytes is not None and self.device_bytes else None
        changes: dict[str, Any] = {"batch_size": batch_size, "memory_limit_bytes": limit_bytes}
        with tempfile.TemporaryDirectory(prefix="samestep-") as scratch:
            launcher = Launcher(plan, Path(scratch), memory_fraction=fraction)
            workload, seed = plan.workload, plan.seed
            batch = datasets.synthesise(workload, workload.model.image, seed=seed, train=batch_size, test=0)
            dataset_file.save(batch, launcher.dataset)
            with launcher.child(run, purpose="try") as child:
                opened = child.call("open", plan.deadlines["open"], spec=launcher.spec(run, **changes))
                unit = opened["steps_per_dispatch"]
                # The first step compiles, so the deadline is that of the warm-up.
                child.call("block", plan.deadlines["warm_up"], steps=unit * -(-STEPS // unit))
        return run
