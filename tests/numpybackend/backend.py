"""NumPy behind the shared interface: one family of models, Adam, float32 and float64, on a CPU."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compare.base import descriptions
from compare.base.interface import (
    KEPT_LOSSES,
    Array,
    Arrays,
    Batch,
    Kernel,
    Memory,
    Refused,
    RunSpec,
    State,
)
from compare.base.operation_counts import Operation
from compare.base.profiles import Peaks, Profile
from compare.base.workloads import ModelSpec, OptimizerSpec
from tests.numpybackend import model


class NumPySession:
    """`compare.base.interface.Session` in NumPy. Every call returns when its work is done."""

    steps_per_dispatch = 1

    def __init__(self, spec: RunSpec) -> None:
        workload = descriptions.read_workload(spec)
        shape = workload.model.resized(spec.image_size)
        self._spec, self._rule, self._smoothing = spec, workload.optimizer, workload.label_smoothing
        self._signature = model.signature(shape.image, shape.classes, **shape.arguments)
        self._dtype = np.dtype(spec.precision)
        self._losses: deque[float] = deque(maxlen=KEPT_LOSSES)

    def signature(self) -> dict[str, tuple[int, ...]]:
        return self._signature

    def assign(self, arrays: Arrays) -> None:
        self._parameters = {name: arrays[name].astype(self._dtype) for name in self._signature}
        self._first = {name: np.zeros_like(array) for name, array in self._parameters.items()}
        self._second = {name: np.zeros_like(array) for name, array in self._parameters.items()}
        self._step = 0

    def feed(self, batches: Sequence[Batch]) -> None:
        if len({batch.form for batch in batches}) > 1:
            raise ValueError("a session takes batches of one size")
        self._batches = [(batch.values().astype(self._dtype), batch.labels) for batch in batches]
        self._losses.clear()
        self._fed = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            loss, _, gradients = self._gradients(*self._batches[self._fed % len(self._batches)])
            self._update(gradients)
            self._losses.append(float(loss))
            self._fed += 1

    def wait(self) -> None:
        """Nothing is left to wait for."""

    def losses(self) -> Array:
        return np.array(self._losses)

    def logits(self, images: Array) -> Array:
        return model.forward(images.astype(self._dtype), self._parameters)

    def inspect(self, batch: Batch) -> Arrays:
        before = dict(self._parameters)
        loss, outputs, gradients = self._gradients(batch.values().astype(self._dtype), batch.labels)
        self._update(gradients)
        return {
            "loss": loss,
            "logits": outputs["dense"],
            **{f"activation/{name}": output for name, output in outputs.items()},
            **{f"gradient/{name}": gradient for name, gradient in gradients.items()},
            **{f"update/{name}": array - before[name] for name, array in self._parameters.items()},
        }

    def export(self) -> State:
        moments = {"first_moment": self._first, "second_moment": self._second}
        optimizer = {f"{kind}/{name}": array for kind, arrays in moments.items() for name, array in arrays.items()}
        return State(dict(self._parameters), {}, optimizer, self._step)

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        layers = {"conv": model.convolve, "dense": model.apply_dense}
        if layer not in layers:
            raise Refused(f"no layer {layer!r} in this session; allowed: {', '.join(layers)}")
        return layers[layer](inputs.astype(self._dtype), self._parameters)

    def memory(self) -> Memory:
        figures = ("live_peak_bytes", "pool_peak_bytes", "static_bytes")
        return Memory(absent=dict.fromkeys(figures, "NumPy has no allocator of its own"))

    def kernels(self, steps: int) -> list[Kernel]:
        self.run(steps)
        return []

    def watch(self) -> None:
        """NumPy has no layers to name."""

    def profile(self, steps: int) -> Profile:
        raise Refused("NumPy has no profiler")

    def operations(self) -> list[Operation]:
        raise Refused("NumPy traces no operations")

    def peaks(self) -> Peaks:
        raise Refused("NumPy has no profiler")

    def settings(self) -> dict[str, Any]:
        return {
            "parameter_dtype": self._dtype.name,
            "compute_dtype": self._dtype.name,
            "layer_dtypes": dict.fromkeys(model.LAYERS, self._dtype.name),
            "tf32": None,
            "loss_scaling": False,
            "batch_size": self._spec.batch_size,
            "accumulate": 1,
            "learning_rates": {"0": self._rule.learning_rate},
            "batch_norm": self._spec.batch_norm,
            "deterministic": self._spec.deterministic,
        }

    def _gradients(self, images: Array, labels: Array) -> tuple[Array, Arrays, Arrays]:
        return model.train(images, labels, self._parameters, self._smoothing)

    def _update(self, gradients: Arrays) -> None:
        """Take one step of Adam (Kingma and Ba 2015, epsilon outside the square root)."""
        self._step += 1
        one, two = self._rule.betas
        rate = self._rule.learning_rate / (1 - one**self._step)
        for name, gradient in gradients.items():
            self._first[name] = one * self._first[name] + (1 - one) * gradient
            self._second[name] = two * self._second[name] + (1 - two) * gradient**2
            size = np.sqrt(self._second[name]) / np.sqrt(1 - two**self._step) + self._rule.epsilon
            step = rate * self._first[name] / size
            self._parameters[name] = (self._parameters[name] - step).astype(self._dtype)


class NumPyBackend:
    """`compare.base.interface.Backend` in NumPy."""

    name = "numpy"

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def open(self, spec: RunSpec) -> NumPySession:
        workload = descriptions.read_workload(spec)
        if workload.model.family != "simple" or not _is_plain_adam(workload.optimizer):
            raise Refused(f"numpy has no twin of workload {workload.name}; allowed: digits-cnn, mnist-cnn")
        if spec.precision not in ("float32", "float64"):
            raise Refused(f"numpy has no precision {spec.precision}; allowed: float32, float64")
        if spec.device != "cpu" or spec.accumulate != 1:
            raise Refused("numpy trains whole batches on a CPU; allowed: --device cpu --accumulate 1")
        return NumPySession(spec)

    def trace(self, model: ModelSpec, batch_size: int) -> dict[str, Any]:
        raise Refused("numpy traces no models; allowed: built-in workloads")

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def delay(self, seconds: float, device: str) -> Callable[[], None] | None:
        return None

    def ballast(self, size: int, device: str) -> Any:
        return np.ones(size, np.uint8)


def _is_plain_adam(rule: OptimizerSpec) -> bool:
    plain = rule.name == "adam" and not rule.weight_decay and rule.clip_norm is None
    return plain and rule.schedule.is_constant


BACKEND = NumPyBackend()
