"""What a comparison will do, checked as a whole before any process starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, TypeGuard

from compare.base import (
    arguments,
    descriptions,
    installed,
    output,
    workloads,
)
from compare.base.arguments import LARGEST, whole
from compare.base.interface import DEVICES, Refused, RunSpec
from compare.base.knobs import NOT_PARALLEL, Value
from compare.base.precisions import PRECISIONS
from compare.base.workloads import Workload
from compare.cluster.cluster import Cluster
from compare.data import datasets
from compare.data.datasets import Dataset
from compare.settings import contenders, feasibility, splitting, tunings
from compare.settings.block_order import gpus_of_round
from compare.settings.contenders import Contender
from compare.settings.pair_spec import Request

# Seconds that each phase of a child may take before it counts as hanging; compilation is the longest.
DEADLINES: Mapping[str, float] = {
    "start": 300.0,
    "open": 600.0,
    "warm_up": 1800.0,
    "block": 600.0,
    "train": 7200.0,
    "record": 1800.0,
    "memory": 1800.0,
}

DESIGNS: Mapping[str, str] = {
    "alternating": "all contenders of a round alive together, their blocks alternating",
    "turns": "one contender after the other in each round",
    "sequential": "all rounds of one contender, then all of the next: shows what a bad design does, and is INVALID",
}


@dataclass(frozen=True)
class Plan:
    """One comparison, all choices made. Build it with `make`, which refuses what cannot be done.

    `request` says how a user's own pair is brought together; `weights` is that of `RunSpec`; a workload that is not
    `resizable` takes images of its own size only. `cluster` are the machines that batches are split over.
    """

    contenders: tuple[Contender, ...]
    workload: Workload
    batch_size: int
    precision: str
    device: str
    rounds: int
    seed: int
    epochs: int
    margin: float
    out: Path
    dataset: Dataset
    data_folder: str | None = None
    images: int | None = None
    request: Request = field(default_factory=Request)
    weights: str | None = None
    resizable: bool = True
    accumulate: int = 1
    devices: int = 1
    rotation: int = 1
    batch_norm: str = "sync"
    agreement: bool = True
    deterministic: bool = False
    design: str = "alternating"
    energy: bool = True
    cold_compile: bool = True
    search_anew: bool = False
    communication: bool = False
    confidence: float = 0.95
    deadline: float | None = None
    cluster: Cluster = field(default_factory=Cluster, compare=False)

    @property
    def deadlines(self) -> Mapping[str, float]:
        """Seconds that each phase of a child may take."""
        return DEADLINES if self.deadline is None else dict.fromkeys(DEADLINES, self.deadline)

    @cached_property
    def _described(self) -> dict[str, Any]:
        return descriptions.to_json(self.workload)

    def knobs(self, contender: Contender) -> dict[str, Value]:
        """Return the value of every knob that a contender has here."""
        backend, tuning = contender.backend, contender.tuning
        return tunings.resolve(backend, tuning, self.device, self.workload.name, self.precision, self.batch_norm)

    def keeps_search(self, contender: Contender) -> bool:
        """Whether a contender's program keeps what a search for kernels found when it was compiled.

        XLA searches for none where algorithms are to be deterministic (xla/service/gpu, IsAutotuningEnabled).
        """
        values = self.knobs(contender)
        searches = not (self.deterministic and contender.backend == "jax")
        return searches and tunings.keeps_search(contender.backend, values, self.device)

    def devices_of(self, values: Mapping[str, Any]) -> int:
        """Return how many devices a contender with these knobs trains on: one, unless it says how it splits batches."""
        return 1 if values["parallel"] == NOT_PARALLEL else self.devices

    def devices_here(self, values: Mapping[str, Any]) -> int:
        """Return how many of them are this machine's."""
        return max(1, self.devices_of(values) // self.cluster.count)

    def gpus_of_round(self, number: int) -> range | None:
        """Return the GPUs that a round is timed on (`compare.settings.block_order.gpus_of_round`)."""
        return gpus_of_round(number, self.devices, self.rotation)

    def spec(self, contender: Contender, dataset: Path, **changes: Any) -> RunSpec:
        """Return what one child of a contender gets, with some fields changed; `dataset` is the file it reads."""
        switches = self.knobs(contender)
        values: dict[str, Any] = {
            "workload": self.workload.name,
            "precision": self.precision,
            "device": self.device,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "knobs": switches,
            "epochs": self.epochs,
            "data": str(dataset),
            "accumulate": self.accumulate,
            "devices": self.devices_of(switches),
            "batch_norm": self.batch_norm,
            "deterministic": self.deterministic,
            "described": None if workloads.is_built_in(self.workload) else self._described,
            "weights": self.weights,
        }
        return RunSpec(**(values | changes))


def make(
    texts: Sequence[str],
    *,
    out: Path,
    workload: str | Workload = "digits-cnn",
    batch_size: int | None = None,
    precision: str = "float32",
    device: str = "auto",
    rounds: int | None = 10,
    seed: int = 0,
    epochs: int | None = None,
    margin: float = 0.01,
    data_folder: str | Path | None = None,
    images: int | None = None,
    accumulate: int = 1,
    devices: int = 1,
    rotation: int = 1,
    batch_norm: str = "sync",
    agreement: bool = True,
    deterministic: bool = False,
    design: str = "alternating",
    energy: bool = True,
    cold_compile: bool = True,
    search_anew: bool = False,
    communication: bool = False,
    deadline: float | None = None,
    dataset: Dataset | None = None,
    request: Request | None = None,
    least_contenders: int = 2,
    cluster: Cluster | None = None,
) -> Plan:
    """Return the plan of a comparison.

    `rounds` None times nothing; `images` of the training images are taken, None for all; `accumulate` and `batch_norm`
    are those of `RunSpec`; `devices` is for the contenders that say how they split batches, all others train on one;
    `rotation` is how many GPUs rounds go around on (`compare.settings.block_order.gpus_of_round`; 1 for the first always);
    `design` is one of `DESIGNS`; `energy` asks for joules per step, where a GPU tells, `cold_compile` for the time to
    compile into an empty cache, `search_anew` for a search for kernels in every round where a program keeps one
    (`Plan.keeps_search`), `communication` for what of it several GPUs do not hide; `batch_size` and `epochs` default to
    the workload's; `margin` is relative (0.01 is 1 %); `deadline` in seconds replaces the deadline of every phase;
    `dataset` (default: the workload's own, loaded) is what is trained on; `request` how a user's own pair is brought
    together; `cluster` the machines of the run: on none of them, no folder is read, and none is made.

    Raises:
        Refused: for anything that could not be honoured, before any process starts.
    """
    machines = cluster or Cluster()
    chosen, resolved = check(workload, precision, device, rounds, machines)
    size = chosen.batch_size if batch_size is None else batch_size
    passes = chosen.epochs if epochs is None else epochs
    whole("--batch-size", size, 2)  # batch norm has no variance over one image
    whole("--accumulate", accumulate, 1)
    if size % accumulate or size < 2 * accumulate:
        raise Refused(f"--accumulate {accumulate} with batch {size} is not allowed; allowed: equal parts of 2 or more")
    whole("--epochs", passes, 1)
    whole("--seed", seed, 0)
    arguments.typed("--design", design, str, ", ".join(DESIGNS))
    if design not in DESIGNS:
        raise Refused(f"unknown design {design!r}; allowed: {', '.join(DESIGNS)}")
    if not _is_number(margin) or not 0 < margin < 1:
        raise Refused(f"--margin {_shown(margin)} is not allowed; allowed: above 0 and below 1 (0.01 is 1 %)")
    if deadline is not None and not (_is_number(deadline) and 0 < deadline <= LARGEST):
        raise Refused(f"--deadline {_shown(deadline)} is not allowed; allowed: seconds above 0, up to {LARGEST}")
    switches = {
        "agreement": agreement,
        "deterministic": deterministic,
        "energy": energy,
        "cold_compile": cold_compile,
        "search_anew": search_anew,
    }
    for name, value in switches.items():
        arguments.check(type(value) is bool, name, value, "True, False")
    arguments.typed("--data", data_folder, (str, Path, NoneType), "a folder's path")
    arguments.check(data_folder != "", "--data", data_folder, "a folder's path")
    folder = None if data_folder is None else str(data_folder)
    arguments.typed("request", request, (Request, NoneType), "a compare.Request")
    plan = Plan(
        contenders=tuple(contenders.parse(texts, least_contenders)),
        workload=chosen,
        batch_size=size,
        precision=precision,
        device=resolved,
        rounds=rounds or 0,
        seed=seed,
        epochs=passes,
        margin=margin,
        out=out,
        dataset=dataset or datasets.make_empty("not yet"),
        data_folder=folder,
        images=images,
        request=request or Request(),
        accumulate=accumulate,
        devices=devices,
        rotation=rotation,
        batch_norm=batch_norm,
        agreement=agreement,
        deterministic=deterministic,
        design=design,
        energy=energy,
        cold_compile=cold_compile,
        search_anew=search_anew,
        communication=communication,
        deadline=deadline,
        cluster=machines,
    )
    whole("--devices", plan.devices, 1)
    whole("rotation", plan.rotation, 1)
    splitting.check(plan)
    feasibility.check(plan)
    if dataset is None:  # which may take a quarter of a minute
        load = datasets.load if machines.here else datasets.load_for_other_machines
        made = load(chosen, folder=folder, seed=seed, batch_size=size, epochs=passes, images=images)
        plan = replace(plan, dataset=made)
    if machines.here:
        output.check_scratch()
        output.writable(out)
    return plan


def check(
    workload: str | Workload = "digits-cnn",
    precision: str = "float32",
    device: str = "auto",
    rounds: int | None = None,
    cluster: Cluster | None = None,
) -> tuple[Workload, str]:
    """Return the workload and the device, `cpu` or `cuda`, that are meant; arguments are those of `make`.

    Raises:
        Refused: for what no contender could honour here.
    """
    chosen = trained(workload, precision)
    if device not in DEVICES:
        raise Refused(f"unknown device {device!r}; allowed: {', '.join(DEVICES)}")
    resolved = (cluster or Cluster()).device(device)
    if not PRECISIONS[precision].runs_on(resolved):
        needed = PRECISIONS[precision].required_device
        others = ", ".join(name for name, other in PRECISIONS.items() if other.runs_on(resolved))
        raise Refused(f"precision {precision} needs --device {needed}; allowed on {resolved}: {others}")
    if rounds is not None:
        whole("--rounds", rounds, 2)
    return chosen, resolved


def trained(workload: str | Workload = "digits-cnn", precision: str = "float32") -> Workload:
    """Return the workload that is meant, whatever it will be trained on; arguments are those of `make`.

    Raises:
        Refused: there is no such workload or precision.
    """
    chosen = installed.get(workload) if isinstance(workload, str) else workload
    named = "a name that samestep workloads lists, or a compare.Workload"
    arguments.typed("workload", chosen, Workload, named)
    if precision not in PRECISIONS:
        raise Refused(f"unknown precision {precision!r}; allowed: {', '.join(PRECISIONS)}")
    return chosen


def check_seeds(seeds: int) -> None:
    """Check the number of training runs for the accuracy gate.

    Raises:
        Refused: for fewer than two, which have no spread, and more than 1,000.
    """
    right = type(seeds) is int and 2 <= seeds <= 1000
    arguments.check(right, "--seeds", seeds, "a whole number from 2 to 1000")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)  # a pytest mark may give anything


def _shown(value: object) -> str:
    return f"{value:.12g}" if _is_number(value) else repr(value)
