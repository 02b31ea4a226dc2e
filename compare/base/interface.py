"""The shared interface: what a backend must do, and what crosses between it and samestep.

A backend implements two protocols. `Backend` opens a `Session` for a `RunSpec`, and the session trains one model.
`compare.settings.backends` says how an installed package adds a backend.

Both twins use neutral layouts and names for all arrays that cross:

- Arrays are NumPy, float32 or float64. Labels are int32.
- Images are NHWC. Convolution kernels are HWIO. A transposed convolution has the kernel of the convolution that it
  transposes, so HWOI. Dense kernels are [inputs, outputs].
- A parameter's name is the layer's dotted attribute path in the model, followed by `kernel`, `bias` or `scale`. A
  buffer's name ends in `mean` or `var`.
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
from compare.base.operation_counts import Operation
from compare.base.profiles import Peaks, Profile
from compare.base.workloads import ModelSpec

Array = NDArray[Any]
Arrays = dict[str, Array]
Value = bool | int | str
"""The value of a knob."""
KnobValues = Mapping[str, Value]

DEVICES = ("auto", "cpu", "cuda")
TRAIN, INFER = TASKS = ("train", "infer")
"""A step is a training step, or a request: a forward pass in evaluation mode."""
BATCH_NORMS = ("sync", "local")
"""Batch norm over devices: `sync` takes the statistics of the whole batch, `local` those of each device's part."""
OWN_WEIGHTS = "own"


def is_buffer(name: str) -> bool:
    """Return whether a neutral name belongs to a buffer."""
    return name.rpartition(".")[2] in ("mean", "var")


KEPT_LOSSES = 4096
"""Number of losses that a session keeps since `feed`."""


@dataclass(frozen=True)
class Batch:
    """One training or test batch.

    Attributes:
        images: [N, H, W, C], float32 values or bytes (uint8).
        labels: int32, [N], or [N, H, W] with a label for each pixel.
        levels: [256, C] float32, the value of each byte in each channel; None if images are values.
    """

    images: Array
    labels: Array
    levels: Array | None = None

    @property
    def form(self) -> tuple[object, ...]:
        """Return the shapes and the dtype that batches of one size share."""
        return self.images.shape, self.images.dtype, self.labels.shape

    def values(self, part: slice = slice(None)) -> Array:
        """Return the images, or a part of them, as float32 values [N, H, W, C]. Bytes are looked up in `levels`."""
        images = self.images[part]
        if self.levels is None:
            return images
        return self.levels[images, np.arange(images.shape[-1])]


@dataclass(frozen=True)
class RunSpec:
    """Everything that one child process needs to build and train one contender.

    Attributes:
        workload: its name in `compare.base.workloads`. Other workloads are given by `described`.
        precision: one of `compare.base.precisions.PRECISIONS`.
        device: `cpu` or `cuda` (already resolved, never `auto`).
        batch_size: images per step, over all devices.
        seed: fixes weights, data split and shuffles.
        knobs: value by name of every knob of `compare.base.knobs` that the backend has.
        epochs: passes over the training set in the training run.
        data: safetensors file of the dataset (`compare.data.dataset_file`).
        image_size: height and width in pixels in place of the workload's. Certificates use odd and even sizes.
        accumulate: number of micro-batches of a step. They are equal parts of the batch, taken one after the other.
            Batch norm sees each alone. Loss and gradients are the means over all.
        deterministic: ask the framework for its deterministic algorithms.
        loss_scale: first loss scale of a precision that has one (the default is torch.amp.GradScaler's).
        described: the whole workload as JSON (`compare.base.descriptions.to_json`) if `compare.base.workloads` has none
            of that name.
        weights: safetensors file of the initial weights. None takes `compare.data.weights.initialise`. `OWN_WEIGHTS`
            keeps the weights that the user's factory gave its model.
        devices: number of devices that share each batch, in equal parts and in order. The knob `parallel` says how.
        batch_norm: one of `BATCH_NORMS`.
        memory_limit_bytes: most bytes that the session may take; None sets no limit. On `cuda` it limits the
            framework's allocator. On `cpu` it limits all that the process takes after the framework's import
            (`compare.worker.memory_limit`).
        task: one of `TASKS`.
        inspects_uncompiled: whether `Session.inspect` needs no compiler of its own, where its operations run without
            one. `Session.run` stays compiled.
        keeps_traces: whether the session may take what an earlier process has traced, and keep what it traces itself.
            Everything that decides a program must be the same for all processes that share the cache.
    """

    workload: str
    precision: str
    device: str
    batch_size: int
    seed: int
    knobs: KnobValues
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
    task: str = TRAIN
    inspects_uncompiled: bool = False
    keeps_traces: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types. `RunSpec(**spec.to_json())` is the inverse."""
        return dict(vars(self))  # all values are JSON types


@dataclass(frozen=True)
class State:
    """A training state: arrays by name, and `step`, the number of steps taken so far."""

    parameters: Arrays
    buffers: Arrays
    optimizer: Arrays
    step: int


@dataclass(frozen=True)
class Memory:
    """Bytes by the definitions of `compare.machine.memory`. A missing figure is None, with a reason.

    Attributes:
        live_peak_bytes: most bytes that live tensors and workspaces of libraries held in the framework's allocator.
            Searches for kernels are left out.
        pool_peak_bytes: most bytes that this allocator had reserved from the device. Searches are left out, too.
        process_bytes: bytes of the process, less those of a process that only imports the framework. NVML counts them
            on a GPU; on a CPU they are the peak resident set.
        static_bytes: the compiler's plan for one step: arguments, outputs and temporaries (XLA only).
        absent: figure name to the reason why it is None.
    """

    live_peak_bytes: int | None = None
    pool_peak_bytes: int | None = None
    process_bytes: int | None = None
    static_bytes: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict[str, str])


class Kernel(NamedTuple):
    """One kernel or copy that ran on a device, as the framework's profiler saw it.

    `begin` and `end` are seconds on one clock for all kernels of a device.
    """

    device: str
    name: str
    begin: float
    end: float


class Session(Protocol):
    """One model in training. samestep calls it from one thread: `assign` and `feed` first, then in any order.

    A session that loads programs when it is made tells how long that took, in an attribute `loading_seconds`.
    """

    @property
    def steps_per_dispatch(self) -> int:
        """Return the steps that one call of the program trains.

        `run` must train any number of steps correctly, and multiples of this number at full speed.
        """
        ...

    def signature(self) -> dict[str, tuple[int, ...]]:
        """Return the neutral shape of every parameter and buffer by name, in execution order."""
        ...

    def assign(self, arrays: Arrays) -> None:
        """Set every parameter and buffer from float64 arrays, and reset the optimizer and the step count."""
        ...

    def feed(self, batches: Sequence[Batch]) -> None:
        """Take batches of one size. Step i from here on trains on batch i modulo their number.

        Batches go to the device at once. With the knob `input=stream` they stay on the host until they are due.

        Raises:
            ValueError: the batches differ in size. Streamed batches must also share the meaning of their bytes.
        """
        ...

    def run(self, steps: int) -> None:
        """Start that many training steps. Do not wait for the device."""
        ...

    def wait(self) -> None:
        """Wait until the device has finished all steps. Timing uses no other synchronisation."""
        ...

    def losses(self) -> Array:
        """Wait, and return the losses [steps] since `feed`, at most the last `KEPT_LOSSES`."""
        ...

    def logits(self, images: Array) -> Array:
        """Wait, and return the logits of float32 images [N, H, W, C] in evaluation mode.

        Their shape is the labels' shape, followed by the number of classes.
        """
        ...

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        """Return the output of one layer, by its neutral name, for inputs in neutral layout.

        Buffers stay unchanged.
        """
        ...

    def inspect(self, batch: Batch) -> Arrays:
        """Train one step on a batch and return its internals in the parameters' dtype.

        Keys are `loss`, `logits`, `activation/LAYER`, `gradient/PARAMETER` (of the unscaled loss), `update/PARAMETER`
        (new value minus old) and `buffer/BUFFER` (new value).
        """
        ...

    def export(self) -> State:
        """Wait, and return a copy of the whole training state."""
        ...

    def memory(self) -> Memory:
        """Return the memory figures that the framework itself reports."""
        ...

    def kernels(self, steps: int) -> list[Kernel]:
        """Train that many steps under the framework's profiler, wait, and return the kernels that ran.

        The list is empty if the profiler shows no kernels of devices, as on a CPU.
        """
        ...

    def watch(self) -> None:
        """Prepare `profile`, before the session has run anything: later the compiled programs' layers are unknown."""
        ...

    def profile(self, steps: int) -> Profile:
        """Train that many steps under the framework's profiler, wait, and return its events with their layers."""
        ...

    def operations(self) -> list[Operation]:
        """Return the convolutions and products of one step, from the shapes of its trace, without padding."""
        ...

    def peaks(self) -> Peaks:
        """Return the bandwidth and the dense peak that simple loops reach on the session's device and precision."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the effective settings as JSON types, read back from the framework where possible.

        `compare.agreement.effective_settings.SHARED` lists the settings that must agree between contenders.
        """
        ...


class Backend(Protocol):
    """A framework behind the shared interface."""

    @property
    def name(self) -> str:
        """Return the name that contenders use, such as `jax`."""
        ...

    def versions(self) -> dict[str, str]:
        """Return the versions, by name, of all packages that take part in a training step."""
        ...

    def open(self, spec: RunSpec) -> Session:
        """Build the model and training step of `spec`.

        Raises:
            Refused: the framework, its version or the device cannot honour something in the spec.
        """
        ...

    def trace(self, model: ModelSpec, batch_size: int) -> dict[str, Any]:
        """Trace a user's model in one training-mode pass over that many images.

        Returns `compare.base.trace.Trace.to_json`.
        """
        ...

    def out_of_memory(self, error: BaseException) -> bool:
        """Return whether an exception of the framework means that device or host memory ran out."""
        ...

    def delay(self, seconds: float, device: str) -> Callable[[], None] | None:
        """Return a function that starts work of so many seconds on the device (`samestep selftest`).

        Return None if the device is the host, which the caller can keep busy itself.
        """
        ...

    def ballast(self, size: int, device: str) -> Any:
        """Return an object that holds `size` bytes of device memory for its lifetime (`samestep selftest`)."""
        ...
