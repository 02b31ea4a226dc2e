"""A linear softmax classifier trained by SGD in NumPy, behind the shared interface. Its work is real, its time is not.

Faults of the arithmetic:
- `wrong-gradient`: the kernel's gradient is wrong by a factor of 1 + 1e-6.
- `nan-gradient`, `zero-gradient`: the kernel's gradient has a NaN, or is zero.
- `wrong-shape`: of the recorded logits.
- `wrong-dtype`: of the recorded loss.
- `unsteady`: sums take another order each time.
- `skip`: every tenth step is skipped.
- `nan-loss`: the loss is NaN after five steps.
- `never-wait`: queued work is never done.
- `late`: queued work is done only when its result is read.
- `frozen`: a process trains only the bias after 60 steps.
- `aged`: the logits are half as large after 60 steps.
- `unlike`: every process starts from other weights.
- `settings`: reports another compute dtype.
- `nan-setting`: reports a value that JSON cannot carry.
- `protocol`: greets in another version.
"""

import math
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from compare.base import descriptions, protocol
from compare.base.interface import (
    INFER,
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
from compare.base.workloads import ModelSpec
from compare.worker import server
from tests.fakebackend.script import Script

CLASSES = 10
RATE = 0.1
_DISPATCH = 0.01  # part of a step's time that passes while it is dispatched
_NAN_AFTER = 5
_MANY = 64
_OLD = 60

_Prepared = tuple[Array, tuple[Array, Array], Array]
"""A batch as every step takes it: images as rows, the place of each right class, and these classes as ones."""


class FakeSession:
    def __init__(self, spec: RunSpec, script: Script, inputs: int) -> None:
        self._spec, self._script, self._inputs = spec, script, inputs
        script.knobs = spec.knobs
        factors = (factor for knob, factor in script.behaviour.knob_factors.items() if spec.knobs.get(knob))
        self._slowdown = script.behaviour.slowdown.get(str(spec.devices), 1.0) * math.prod(factors)
        self._dtype = np.dtype(spec.precision)
        self._queued = self._step = self._fed = self._age = 0
        self._batches: list[Callable[[], _Prepared]] = []
        self._losses: list[float] = []

    @property
    def steps_per_dispatch(self) -> int:
        return int(self._spec.knobs["steps-per-dispatch"])

    def signature(self) -> dict[str, tuple[int, ...]]:
        return {"dense.kernel": (self._inputs, CLASSES), "dense.bias": (CLASSES,)}

    def assign(self, arrays: Arrays) -> None:
        self._script.at("assign")
        self._parameters = {name: arrays[name].astype(self._dtype) for name in self.signature()}
        if self._script.has("unlike"):
            self._parameters["dense.kernel"] *= self._dtype.type(1 + 1e-2 * (1 + os.getpid() % 97))
        self._queued = self._step = 0

    def feed(self, batches: Sequence[Batch]) -> None:
        self._script.at("feed")
        self._finish()
        self._batches, self._losses, self._fed = [cache(partial(self._prepare, each)) for each in batches], [], 0

    def run(self, steps: int) -> None:
        self._script.at("run")
        self._script.hold(self._spec.batch_size, self._spec.memory_limit_bytes)
        if not self._age:
            program = f"{self._spec.precision}-{self._spec.batch_size}"
            self._script.compile(program, keeps_traces=self._spec.keeps_traces)
        self._queued += steps
        self._script.advance(_DISPATCH * steps * self._slowdown)

    def wait(self) -> None:
        self._script.at("wait")
        if not self._script.has("late"):
            self._finish()

    def losses(self) -> Array:
        self._finish()
        return np.array(self._losses[-4096:])

    def logits(self, images: Array) -> Array:
        self._script.at("logits")
        self._finish()
        return self._forward(images.reshape(len(images), -1).astype(self._dtype))

    def inspect(self, batch: Batch) -> Arrays:
        self._script.at("inspect")
        self._finish()
        old = dict(self._parameters)
        loss, logits, gradients = self._train(self._prepare(batch))
        if self._script.has("wrong-shape"):
            logits = logits[:1]
        if self._script.has("wrong-dtype"):
            loss = loss.astype(np.float16)
        internals: Arrays = {"loss": loss, "logits": logits, "activation/dense": logits}
        internals |= {f"gradient/{name}": gradient for name, gradient in gradients.items()}
        return internals | {f"update/{name}": self._parameters[name] - old[name] for name in old}

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        self._script.at("run_layer")
        if layer != "dense":
            raise Refused(f"the fake backend has no layer {layer!r}; allowed: dense")
        self._finish()
        return self._forward(inputs.reshape(len(inputs), -1).astype(self._dtype))

    def export(self) -> State:
        self._script.at("export")
        self._finish()
        return State({name: array.copy() for name, array in self._parameters.items()}, {}, {}, self._step)

    def memory(self) -> Memory:
        self._script.at("memory")
        return Memory(live_peak_bytes=1 << 20, absent=dict.fromkeys(("pool_peak_bytes", "static_bytes"), "fake"))

    def kernels(self, steps: int) -> list[Kernel]:
        self._script.at("kernels")
        self.run(steps)
        self.wait()
        # Of every step, 3 ms of computation and 2 ms of an exchange, half of it beside the computation.
        return [
            Kernel(str(device), name, 0.01 * step + begin, 0.01 * step + end)
            for device in range(self._spec.devices)
            for step in range(steps)
            for name, begin, end in (("gemm", 0.0, 0.003), ("ncclDevKernel_AllReduce_Sum_f32", 0.002, 0.004))
        ]

    def watch(self) -> None:
        self._script.at("watch")

    def profile(self, steps: int) -> Profile:
        """Of every step, 6 ms are a product, 2 ms a copy, and 2 ms nothing runs."""
        self._script.at("profile")
        self.run(steps)
        self.wait()
        events = [
            {"name": name, "cat": "cpu_op", "ts": 1e4 * step + begin, "dur": duration, "tid": "1", "args": {}}
            for step in range(steps)
            for name, begin, duration in (("layer:dense", 0, 7e3), ("aten::mm", 0, 6e3), ("aten::copy_", 7e3, 2e3))
        ]
        for event in events:
            event["cat"] = "user_annotation" if event["name"] == "layer:dense" else "cpu_op"
        return Profile("torch", "cpu", steps, events, layers={"dense": "dense"})

    def operations(self) -> list[Operation]:
        self._script.at("operations")
        return [Operation("dense", "matrix-product", "forward", 1000)]

    def peaks(self) -> Peaks:
        self._script.at("peaks")
        return Peaks(1e9, 1e6)

    def settings(self) -> dict[str, Any]:
        self._script.at("settings")
        compute = "float16" if self._script.has("settings") else self._spec.precision
        extra: dict[str, Any] = {"odd": float("nan")} if self._script.has("nan-setting") else {}
        if self._script.has("uncompiled"):
            extra["compile"] = False
        batch_size = self._spec.batch_size
        return {"parameter_dtype": str(self._dtype), "compute_dtype": compute, "batch_size": batch_size, **extra}

    def _finish(self) -> None:
        """Do the queued steps and let their time pass."""
        if not self._queued or self._script.has("never-wait"):
            return
        steps, self._queued = self._queued, 0
        for _ in range(steps):
            batch = self._batches[self._fed % len(self._batches)]
            self._fed += 1
            if self._script.has("skip") and self._fed % 10 == 0:
                continue
            loss, _, _ = self._train(batch())
            spoilt = self._script.has("nan-loss") and self._step > _NAN_AFTER
            self._losses.append(float("nan") if spoilt else float(loss))
        self._script.advance((1 - _DISPATCH) * steps * self._slowdown)

    def _prepare(self, batch: Batch) -> _Prepared:
        images = batch.values().reshape(len(batch.labels), -1).astype(self._dtype)
        right = np.arange(len(batch.labels)), batch.labels
        return images, right, np.eye(CLASSES, dtype=self._dtype)[batch.labels]

    def _train(self, batch: _Prepared) -> tuple[Array, Array, Arrays]:
        images, right, targets = batch
        count = len(images)
        logits = self._forward(images)
        if self._script.has("aged") and self._age > _OLD:
            logits = logits / 2
        shifted = logits - logits.max(1, keepdims=True)
        logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        loss = -logarithms[right].mean()
        error = (np.exp(logarithms) - targets) / self._dtype.type(count)
        gradients = {"dense.kernel": self._product(images.T, error), "dense.bias": error.sum(0)}
        if self._script.has("wrong-gradient"):
            gradients["dense.kernel"] *= self._dtype.type(1 + 1e-6)
        if self._script.has("nan-gradient"):
            gradients["dense.kernel"][0, 0] = np.nan
        if self._script.has("zero-gradient") or (self._script.has("zero-gradient-of-many") and count > _MANY):
            gradients["dense.kernel"] *= 0
        if self._script.has("frozen") and self._age > _OLD:
            gradients["dense.kernel"] *= 0
        for name, gradient in gradients.items():
            self._parameters[name] = self._parameters[name] - self._dtype.type(RATE) * gradient
        self._step += 1
        self._age += 1
        return np.asarray(loss), logits, gradients

    def _forward(self, images: Array) -> Array:
        return self._product(images, self._parameters["dense.kernel"]) + self._parameters["dense.bias"]

    def _product(self, a: Array, b: Array) -> Array:
        if self._script.has("unsteady"):
            order = self._script.order(a.shape[1])
            return a[:, order] @ b[order]
        # Another framework sums in another order: rounding then differs, and the gates have something to measure.
        return a @ b if self._script.name == "fake" else a[:, ::-1] @ b[::-1]


class FakeBackend:
    def __init__(self, script: Script) -> None:
        self._script = script

    @property
    def name(self) -> str:
        return self._script.name

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def open(self, spec: RunSpec) -> FakeSession:
        self._script.at("open")
        if spec.precision not in ("float32", "float64"):
            raise Refused(f"the fake backend has no {spec.precision}; allowed: float32, float64")
        model = descriptions.read_workload(spec).model.resized(spec.image_size)
        if spec.task == INFER:
            from tests.fakebackend.inference import FakeInferenceSession

            return FakeInferenceSession(spec, self._script, math.prod(model.image))
        return FakeSession(spec, self._script, inputs=math.prod(model.image))

    def trace(self, model: ModelSpec, batch_size: int) -> dict[str, Any]:
        raise Refused(f"the fake backend has no models but its own; allowed: workloads, not {model.family}")

    def out_of_memory(self, error: BaseException) -> bool:
        return "out of fake memory" in str(error)

    def delay(self, seconds: float, device: str) -> Callable[[], None]:
        return lambda: self._script.pass_seconds(seconds)

    def ballast(self, size: int, device: str) -> Any:
        return np.ones(size, np.uint8)


def serve_as(name: str) -> None:
    """Serve the backend of that name, its clock scripted by SAMESTEP_FAKE."""
    script = Script(name, os.environ["SAMESTEP_FAKE"])
    script.at("start")
    if script.has("protocol"):
        protocol.VERSION += 1
    server.serve(FakeBackend(script), script.clock)
