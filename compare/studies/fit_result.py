"""The result of `samestep fit` as typed, frozen objects, and how `fit.json` is written.

Each field has the name of its key. Sizes are bytes, batches are images per step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compare.base import typed_json
from compare.base.typed_json import JsonObject
from compare.execution import batch_trial
from compare.execution.batch_trial import Try
from compare.results import result_file
from compare.results.model import Environment
from compare.studies.fitting import Search, Task

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class FitSpec(JsonObject):
    """The settings of a search.

    Attributes:
        batch_size: the batch whose smallest memory is searched for.
        steps: training steps of a try.
        memory_limit_bytes: the memory in which the largest batch is searched for.
        most_memory_bytes: the upper end of the search for the smallest memory.
        most_images: the largest batch that is tried.
    """

    workload: str
    contenders: tuple[str, ...]
    image: tuple[int, ...]
    batch_size: int
    precision: str
    device: str
    seed: int
    steps: int
    memory_limit_bytes: int
    most_memory_bytes: int
    most_images: int


@dataclass(frozen=True, kw_only=True)
class FitContender(JsonObject):
    """The searches of one contender.

    Attributes:
        largest_batch: the largest batch that trained within the limit.
        largest_batch_exact: whether the search for it was completed.
        smallest_failed_batch: the smallest batch that did not fit.
        stopped_by: what ended the search for the largest batch: `memory`, `cap` or a failure's status.
        smallest_memory_bytes: the smallest limit in which the batch trained.
        largest_failed_memory_bytes: the largest limit in which it did not.
        tries: all tries, in order.
    """

    name: str
    backend: str
    tuning: str
    status: str
    reason: str | None
    versions: Mapping[str, str]
    largest_batch: int | None
    largest_batch_exact: bool
    smallest_failed_batch: int | None
    stopped_by: str
    smallest_memory_bytes: int | None
    largest_failed_memory_bytes: int | None
    tries: tuple[Try, ...]


@dataclass(frozen=True, kw_only=True)
class Fit(JsonObject):
    """The searches of all contenders."""

    schema_version: int
    id: str
    created: str
    command: tuple[str, ...]
    spec: FitSpec
    environment: Environment
    contenders: tuple[FitContender, ...]

    @property
    def has_failure(self) -> bool:
        """Whether any contender failed, or could not train the batch."""
        return any(contender.status != "ok" for contender in self.contenders)


def build(task: Task, searches: Sequence[Search], command: Sequence[str]) -> Fit:
    """Return the result of a task's searches."""
    plan = task.plan
    spec = FitSpec(
        workload=plan.workload.name,
        contenders=tuple(contender.name for contender in plan.contenders),
        image=tuple(plan.workload.model.image),
        batch_size=plan.batch_size,
        precision=plan.precision,
        device=plan.device,
        seed=plan.seed,
        steps=batch_trial.STEPS,
        memory_limit_bytes=task.limit_bytes,
        most_memory_bytes=task.most_bytes,
        most_images=task.most_images,
    )
    return Fit(
        **result_file.make_head(SCHEMA_VERSION, command),
        spec=spec,
        environment=Environment(extra=typed_json.write(task.environment)),
        contenders=tuple(_build_contender(task, search) for search in searches),
    )


def write(fit: Fit, folder: Path) -> Path:
    """Write `folder/fit.json` atomically. Return its path.

    Raises:
        Refused: as `compare.results.result_file.replace`.
    """
    return result_file.replace(folder / result_file.FIT_NAME, typed_json.write(fit))


def _build_contender(task: Task, search: Search) -> FitContender:
    contender, tries, batch, memory = search.contender, search.tester.tries, search.batch, search.memory
    # If a failure ended the search, the largest batch that trained until then is a lower bound.
    trained = [each.batch_size for each in tries if each.fitted and each.memory_limit_bytes == task.limit_bytes]
    return FitContender(
        name=contender.name,
        backend=contender.backend,
        tuning=contender.tuning,
        status=search.status,
        reason=search.reason,
        versions=search.tester.versions,
        largest_batch=batch.fits if batch else max(trained, default=None),
        largest_batch_exact=batch is not None and batch.exact,
        smallest_failed_batch=batch.fails if batch else None,
        stopped_by=search.stopped_by,
        smallest_memory_bytes=memory.fits if memory else None,
        largest_failed_memory_bytes=memory.fails if memory else None,
        tries=tuple(tries),
    )
