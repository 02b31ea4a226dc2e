"""What a comparison will do, checked as a whole before any process starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from compare.base import arguments, descriptions, early_stopping, installed, output, workloads
from compare.base.interface import INFER, Refused, RunSpec
from compare.base.knobs import NOT_PARALLEL, Value
from compare.base.precisions import PRECISIONS
from compare.base.workloads import PAIR, Workload
from compare.cluster.cluster import Cluster
from compare.data import datasets, pruning
from compare.data.datasets import Dataset
from compare.settings import best, contenders, feasibility, revisions, splitting, tasks, tunings
from compare.settings.block_order import list_gpus_of_round
from compare.settings.contenders import Contender
from compare.settings.kinds import Fraction
from compare.settings.options import RunSettings, Settings
from compare.settings.pair_spec import Request

# The batch of a pair's training runs in a certificate on a CPU: 16 images of 32x32 pixels, and 4 of 64x64 or more. The
# records have the same batch, so they share compiled programs.
_MOST_PIXELS, _LEAST_BATCH = 2**14, 4


@dataclass(frozen=True, kw_only=True)
class Plan(RunSettings):
    """One comparison with all choices made. `make` builds it and refuses what cannot be done.

    It has every field of `RunSettings` as the user gave it. Only `device` is resolved, to `cpu` or `cuda`.

    Attributes:
        contenders: at least one; the first is the baseline.
        batch_size: images of a step, or of the largest request.
        batch_sizes: images of each kind of request, None for training.
        rounds: most rounds to time; 0 times nothing.
        fail_above: the slowdown above which a gate fails, 0.03 for 3 %.
        looks: the error of each look at which timing may stop (`compare.base.early_stopping`), None without looks.
        out: folder for the result file.
        data: the folder that `dataset` was read from; None if it was not read from a folder of the user's.
        request: how a user's own pair is brought together.
        weights: as in `RunSpec`.
        resizable: whether the workload takes images of other sizes than its own.
        cluster: the machines that batches are split over.
    """

    contenders: tuple[Contender, ...]
    workload: Workload
    batch_size: int
    batch_sizes: tuple[int, ...] | None = None
    epochs: int
    rounds: int
    fail_above: float | None = None
    looks: Mapping[int, float] | None = None
    out: Path
    data: str | None = None
    dataset: Dataset
    request: Request = field(default_factory=Request)
    weights: str | None = None
    resizable: bool = True
    cluster: Cluster = field(default_factory=Cluster, compare=False)

    @cached_property
    def _described(self) -> dict[str, Any]:
        return descriptions.to_json(self.workload)

    def _describe(self, contender: Contender) -> dict[str, Any]:
        if not contender.code:
            return self._described
        workload = revisions.move_to_revision(self.workload, contender)
        return descriptions.to_json(workload)

    def knobs(self, contender: Contender) -> dict[str, Value]:
        """Return the value of every knob of a contender."""
        backend, tuning = contender.backend, contender.tuning
        return tunings.resolve(
            backend, tuning, self.device, self.workload.name, self.precision, self.batch_norm, self.task
        )

    def keeps_search(self, contender: Contender) -> bool:
        """Return whether a contender's program keeps the kernels that a search chose when it was compiled.

        With deterministic algorithms XLA does not search (xla/service/gpu, IsAutotuningEnabled).
        """
        values = self.knobs(contender)
        searches = not (self.deterministic and contender.backend == "jax")
        return searches and tunings.keeps_search(contender.backend, values, self.device)

    def devices_of(self, values: Mapping[str, Any]) -> int:
        """Return how many devices a contender with these knobs trains on. It is one unless the knobs split batches."""
        return 1 if values["parallel"] == NOT_PARALLEL else self.devices

    def devices_here(self, values: Mapping[str, Any]) -> int:
        """Return how many devices of this machine a contender with these knobs trains on."""
        return max(1, self.devices_of(values) // self.cluster.count)

    def gpus_of_round(self, number: int) -> range | None:
        """Return the GPUs that a round is timed on, or None if all rounds have the same."""
        return list_gpus_of_round(number, self.devices, self.rotation)

    def spec(self, contender: Contender, dataset: Path, **changes: Any) -> RunSpec:
        """Return the specification for one child, which reads the file `dataset`. `changes` replace its fields."""
        switches = self.knobs(contender)
        values: dict[str, Any] = {
            "workload": self.workload.name,
            "precision": self.precision,
            "device": self.device,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "knobs": switches,
            "epochs": self.finetune_epochs or self.epochs,
            "data": str(dataset),
            "accumulate": self.accumulate,
            "devices": self.devices_of(switches),
            "batch_norm": self.batch_norm,
            "deterministic": self.deterministic,
            "task": self.task,
            "described": None if workloads.is_built_in(self.workload) else self._describe(contender),
            "weights": self.weights,
        }
        return RunSpec(**(values | changes))


def make(
    settings: Settings,
    *,
    cluster: Cluster | None = None,
    dataset: Dataset | None = None,
    least_contenders: int = 2,
) -> Plan:
    """Return the plan of the comparison that a user asks for.

    Args:
        settings: what the user asks for.
        cluster: the machines of the run; default: this one. Without this machine among them, no folder is read or made.
        dataset: what is trained on; default: the workload's own, which is loaded.
        least_contenders: how many contenders there must be.

    Raises:
        Refused: for anything that cannot be done, before any process starts.
    """
    machines = cluster or Cluster()
    place = find_place(settings, machines)
    workload, device = place.workload, place.device
    batch_sizes = tasks.choose_batch_sizes(settings, workload)
    if batch_sizes is None:
        _check_accumulation(place.batch_size, settings.accumulate)
    epochs = workload.epochs if settings.epochs is None else settings.epochs
    texts = best.replace_best(spell_contenders(settings).contenders or (), settings.store, place)
    shared: dict[str, Any] = {option.name: getattr(settings, option.name) for option in fields(RunSettings)}
    shared["device"] = device
    shared["batch_sizes"] = batch_sizes
    shared["data"] = None if settings.data is None else str(settings.data)
    if settings.fail_above is not None:
        shared["fail_above"] = Fraction().read(settings.fail_above)
    looks = None
    if settings.timed and settings.rounds is None and settings.design != "sequential":
        looks = early_stopping.LOOKS if settings.fail_above is None else early_stopping.GATE_LOOKS
    plan = Plan(
        **shared,
        contenders=tuple(contenders.parse(texts, least_contenders)),
        workload=workload,
        batch_size=place.batch_size,
        epochs=epochs,
        rounds=(settings.rounds or max(looks or early_stopping.LOOKS)) if settings.timed else 0,
        looks=looks,
        out=make_default_out() if settings.out is None else Path(settings.out),
        dataset=dataset or datasets.make_empty("not yet"),
        request=settings.request or Request(),
        cluster=machines,
    )
    contenders.check_sides(plan.contenders, workload)
    plan = replace(plan, contenders=revisions.check_out(plan.contenders, workload, plan.store))
    splitting.check(plan)
    feasibility.check(plan)
    if dataset is None:  # loading takes up to 15 s, so it comes after all other checks
        plan = replace(plan, dataset=_load(plan))
    if machines.here:
        output.check_scratch()
        output.make_folder(plan.out)
    return plan


def find_place(settings: Settings, cluster: Cluster | None = None) -> best.Place:
    """Return what the tuning `best` depends on: the work and the device.

    Raises:
        Refused: as `resolve`, and for batch sizes of the other task.
    """
    workload, device = resolve(settings, cluster)
    sizes = tasks.choose_batch_sizes(settings, workload)
    batch_size = workload.batch_size if settings.batch_size is None else settings.batch_size
    sizes = sizes or (batch_size,)
    return best.Place(workload, device, settings.precision, max(sizes), sizes[0], settings.task)


def resolve(settings: Settings, cluster: Cluster | None = None) -> tuple[Workload, str]:
    """Check each setting by itself. Return the workload and the device, `cpu` or `cuda`.

    Raises:
        Refused: for a value that is not allowed, an unknown workload, or a device or precision that is not here.
    """
    settings.check()
    workload = _prune(find_workload(settings.workload), settings)
    device = (cluster or Cluster()).device(settings.device)
    precision = PRECISIONS[settings.precision]
    if not precision.runs_on(device):
        others = ", ".join(name for name, other in PRECISIONS.items() if other.runs_on(device))
        raise Refused(
            f"--precision {precision.name} needs --device {precision.required_device}; allowed on {device}: {others}"
        )
    return workload, device


def _prune(workload: Workload, settings: Settings) -> Workload:
    if settings.finetune_epochs is not None and (settings.prune is None or settings.task == INFER):
        raise Refused(
            f"--finetune-epochs {settings.finetune_epochs} needs --prune and --task train; allowed: with --prune 0.5"
        )
    if workload.model.pruned:
        return workload
    if settings.prune is None:
        if (settings.round_to, settings.prune_by) != (Settings.round_to, Settings.prune_by):
            raise Refused("--round-to and --prune-by need --prune; allowed: with --prune 0.5")
        return workload
    return replace(workload, model=pruning.prune(workload.model, settings.prune, settings.round_to, settings.prune_by))


def find_workload(workload: str | Workload) -> Workload:
    """Return a workload by its name, or the workload itself.

    Raises:
        Refused: for an unknown name.
    """
    return installed.get(workload) if isinstance(workload, str) else workload


def spell_contenders(settings: Settings, parallel: str | None = None) -> Settings:
    """Return settings with --tuning, --knobs and --parallel written into the contenders.

    `parallel` is the default for contenders that do not say how to use several devices.

    Raises:
        Refused: for an unknown word in one of the three, or one that no contender takes.
    """
    texts = settings.contenders
    if texts is None:
        texts = contenders.choose_default_contenders(find_workload(settings.workload))
    arguments.check_text_list("contenders", texts, "a list such as ['torch:tuned', 'jax']")
    split = [contenders.split_revision(text) for text in texts]
    texts = [text for text, _ in split]
    if settings.tuning is not None or settings.knobs is not None:
        texts = contenders.add_tuning(texts, settings.tuning, settings.knobs)
    if settings.parallel is not None or parallel is not None:
        texts = contenders.add_parallel(texts, settings.parallel, parallel)
    texts = [f"{text}@{revision}" if revision else text for text, (_, revision) in zip(texts, split, strict=True)]
    return replace(settings, contenders=texts, tuning=None, knobs=None, parallel=None)


def reduce_to_certificate(settings: Settings) -> Settings:
    """Return the settings of a certificate alone. It times nothing, and a pair has contenders that compile little.

    On a CPU, training runs of a pair with large images take a smaller batch, unless the user gives one. SGD's learning
    rate falls with it. Twelve runs of a deep model would take longer than all else.

    Raises:
        Refused: for a value that is not allowed, or an unknown workload.
    """
    settings.check()
    workload = find_workload(settings.workload)
    if workload.model.family == PAIR and _may_shrink_batch(settings):
        size = min(workload.batch_size, max(_LEAST_BATCH, _MOST_PIXELS // workload.model.pixels))
        slower = workload.optimizer.slowed(size / workload.batch_size)
        workload = replace(workload, batch_size=size, optimizer=slower)
    settings = replace(settings, workload=workload, timed=False)
    if settings.contenders is None and settings.tuning is None and settings.knobs is None:
        chosen = contenders.choose_certificate_contenders(workload, settings.devices)
        settings = replace(settings, contenders=chosen)
    return settings


def _may_shrink_batch(settings: Settings) -> bool:
    """Tell whether a certificate may choose the batch of its training runs."""
    is_free = settings.batch_size is None and settings.data is None and settings.accumulate == 1
    return is_free and settings.devices == 1 and Cluster().device(settings.device) == "cpu"


def make_default_out() -> Path:
    """Return a folder that is named after the current microsecond, so that runs that start together do not share it."""
    return Path("samestep-out") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")


def _check_accumulation(batch_size: int, accumulate: int) -> None:
    arguments.check_whole_number("--batch-size", batch_size, 2)  # batch norm has no variance over one image
    if batch_size % accumulate or batch_size < 2 * accumulate:
        raise Refused(
            f"--accumulate {accumulate} with batch {batch_size} is not allowed; allowed: equal parts of 2 or more"
        )


def _load(plan: Plan) -> Dataset:
    task = plan.workload.task
    if task is not None and not task.is_resolved:
        return datasets.make_empty("not yet")  # the models' outputs decide the targets
    load = datasets.load if plan.cluster.here else datasets.load_for_other_machines
    return load(
        plan.workload,
        folder=plan.data,
        seed=plan.seed,
        batch_size=plan.batch_size,
        epochs=plan.epochs,
        images=plan.images,
    )
