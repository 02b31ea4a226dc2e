"""What a backend is and what crosses between it and samestep: the shared interface.

Arrays that cross are NumPy, float32 or float64 (labels int32), images NHWC, convolution kernels HWIO (a transposed
convolution's are those of the convolution that it transposes, so HWOI), dense kernels [inputs, outputs]. Names of
parameters and buffers are the dotted attribute path of the layer in the model followed by `kernel`, `bias`, `scale`
(parameters), `mean` or `var` (buffers); both twins use the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from compare.base.errors import ContenderFailed as ContenderFailed
from compare.base.errors import DiskFull as DiskFull
from compare.base.errors import MatchingFailed as MatchingFailed
from compare.base.errors import Refused as Refused
from compare.base.errors import first_line as first_line
from compare.base.errors import shortened as shortened
from compare.base.workloads import ModelSpec

Array = NDArray[Any]
Arrays = dict[str, Array]

DEVICES = ("auto", "cpu", "cuda")
BATCH_NORMS = ("sync", "local")
"""Batch norm over devices: `sync`, the statistics of the whole batch; `local`, on each device those of its part."""
OWN_WEIGHTS = "own"


def is_buffer(name: str) -> bool:
    """Return whether a neutral name is a buffer's."""
    return name.rpartition(".")[2] in ("mean", "var")


KEPT_LOSSES = 4096
"""Losses that a session keeps since `feed`."""


@dataclass(frozen=True)
class Batch:
    """One training or test batch: `images` [N, H, W, C], `labels` int32, [N] or, one a pixel, [N, H, W].

    Images are float32 values; or bytes (uint8), and `levels` [256, C] float32 says what value each is in each channel.
    """

    images: Array
    labels: Array
    levels: Array | None = None

    @property
    def form(self) -> tuple[object, ...]:
        """What batches of one size have in common."""
        return self.images.shape, self.images.dtype, self.labels.shape

    def values(self, part: slice = slice(None)) -> Array:
        """Return the values [N, H, W, C] float32 of the images, or a part of them; those of bytes are looked up."""
        images = self.images[part]
        if self.levels is None:
            return images
        return self.levels[images, np.arange(images.shape[-1])]


@dataclass(frozen=True)
class RunSpec:
    """Everything that one child process needs to build and train one contender.

    Attributes:
        workload: its name, in `compare.base.workloads` unless it is described.
        precision: one of `compare.base.precisions.PRECISIONS`.
        device: `cpu` or `cuda` (already resolved, never `auto`).
        batch_size: images per step, over all devices.
        seed: fixes weights, data split and shuffles.
        knobs: the resolved optimisation switches, every knob of `compare.base.knobs` by name.
        epochs: passes over the training set in the training run.
        data: safetensors file of the dataset (`compare.data.dataset_file`), written by the runner.
        image_size: height and width in pixels in place of the workload's (certificates use odd and even sizes).
        accumulate: micro-batches of a step: equal parts of the batch, taken one after the other. Batch norm sees each
            alone; loss and gradients are the means of theirs.
        deterministic: ask the framework for its deterministic algorithms.
        loss_scale: float16's first loss scale (torch.amp.GradScaler's default).
        described: the whole workload as JSON (`compare.base.descriptions.to_json`), where `compare.base.workloads` has none of
            that name: a user's own models.
        weights: safetensors file of the initial weights, in place of `compare.data.weights.initialise`; `OWN_WEIGHTS`: a fresh
            session has those that the user's factory gave its model.
        devices: over how many each batch is split, in equal parts and in order, as the knob `parallel` says.
        batch_norm: one of `BATCH_NORMS`.
        memory_limit_bytes: most bytes that may be taken (None: as many as there are). On `cuda` a limit on the
            framework's allocator; on `cpu` on all that the process takes after the framework's import
            (`compare.worker.process_memory`, by the worker's command `open`).
    """

    workload: str
    precision: str
    device: str
    batch_size: int
    seed: int
    knobs: Mapping[str, Any]
    epochs: int
    data: str
    image_size: int | None = None
    accumulate: int = 1
    deterministic: bool = False
    loss_scale: float = 65536.0
    described: Mapping[str, Any] | None = None
    weights: str | None = None
    devices: int = 1
    batch_norm: str = "sync"
    memory_limit_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types; `RunSpec(**spec.to_json())` is the inverse."""
        return dict(vars(self))  # whose values are of such types


@dataclass(frozen=True)
class State:
    """A training state: `parameters`, `buffers` and `optimizer` by name, and `step`, the steps taken so far."""

    parameters: Arrays
    buffers: Arrays
    optimizer: Arrays
    step: int


@dataclass(frozen=True)
class Memory:
    """Bytes by the definitions of `compare.machine.memory`; None where the device or framework has no such figure.

    Attributes:
        live_peak_bytes: most bytes held by live tensors and libraries' workspaces, not in searches for kernels, by the
            framework's own allocator.
        pool_peak_bytes: most bytes that allocator had reserved from the device, likewise.
        process_bytes: bytes of the process (NVML on a GPU, peak resident set on a CPU), import-only process deducted.
        static_bytes: the compiler's own plan for one step: arguments, outputs and temporaries (XLA only).
        absent: figure name to the reason why it is None.
    """

    live_peak_bytes: int | None = None
    pool_peak_bytes: int | None = None
    process_bytes: int | None = None
    static_bytes: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict[str, str])


class Kernel(NamedTuple):
    """One kernel or copy that a device carried out, as the framework's own profiler saw it.

    `begin` and `end` are seconds of a clock that all kernels of a device share; `device` tells devices apart.
    """

    device: str
    name: str
    begin: float
    end: float


class Session(Protocol):
    """One model in training. Calls are made from one thread, in any order after `assign` and `feed`."""

    @property
    def steps_per_dispatch(self) -> int:
        """Steps that one dispatch trains; `run` takes multiples of it at full speed, any number correctly."""
        ...

    def signature(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter and buffer by name, in neutral layout, in execution order."""
        ...

    def assign(self, arrays: Arrays) -> None:
        """Set every parameter and buffer (float64 arrays, cast to the storage dtype), reset optimizer and step."""
        ...

    def feed(self, batches: Sequence[Batch]) -> None:
        """Take equal-sized batches; step i of what follows trains on batch i modulo their number.

        They are placed on the device, or, where the knob `input` is `stream`, stay on the host until they are due.

        Raises:
            ValueError: they differ in size; where they stay on the host, also in what their bytes mean.
        """
        ...

    def run(self, steps: int) -> None:
        """Dispatch that many training steps without waiting for the device."""
        ...

    def wait(self) -> None:
        """Return when the device has finished all dispatched work: the only synchronisation."""
        ...

    def losses(self) -> Array:
        """Return the losses [steps] of the training steps since `feed`, at most the last `KEPT_LOSSES`; waits."""
        ...

    def logits(self, images: Array) -> Array:
        """Return evaluation-mode logits [*labels' shape, classes] for values [N, H, W, C]; waits."""
        ...

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        """Return one layer's output for inputs in neutral layout, buffers left as they were.

        `layer` is its neutral name.
        """
        ...

    def inspect(self, batch: Batch) -> Arrays:
        """Train one step on `batch` and return its internals.

        Keys: `loss`, `logits`, `activation/LAYER`, `gradient/PARAMETER`, `update/PARAMETER` (new value minus
        old), `buffer/BUFFER` (new value). Gradients are those of the unscaled loss.
        """
        ...

    def export(self) -> State:
        """Return a copy of the whole training state; waits."""
        ...

    def memory(self) -> Memory:
        """Return the figures that the framework itself can report."""
        ...

    def kernels(self, steps: int) -> list[Kernel]:
        """Train that many steps under the framework's profiler; return what devices carried out for them; waits.

        Empty where the profiler shows no devices' kernels, as on a CPU.
        """
        ...

    def settings(self) -> dict[str, Any]:
        """Return the effective settings, read back from the framework, as JSON types."""
        ...


class Backend(Protocol):
    """A framework behind the shared interface."""

    @property
    def name(self) -> str:
        """`jax`, `torch`, or a test backend's name."""
        ...

    def versions(self) -> dict[str, str]:
        """Return package name to version for what takes part in a training step."""
        ...

    def open(self, spec: RunSpec) -> Session:
        """Build the model and training step of `spec`.

        Raises:
            Refused: for anything in the spec that this framework, its version or the device cannot honour.
        """
        ...

    def trace(self, model: ModelSpec, batch_size: int) -> dict[str, Any]:
        """Return `compare.base.trace.Trace.to_json` of a user's model.

        It is traced in one training-mode pass over that many images.
        """
        ...

    def out_of_memory(self, error: BaseException) -> bool:
        """Tell whether an exception of the framework means that device or host memory ran out."""
        ...

    def delay(self, seconds: float, device: str) -> Callable[[], None] | None:
        """Return a function that keeps the device busy for so long, without waiting for it (`samestep selftest`).

        None where the device is the host, which the caller can keep busy itself.
        """
        ...

    def ballast(self, size: int, device: str) -> Any:
        """Return an object that holds `size` bytes of device memory while it lives (`samestep selftest`)."""
        ...
