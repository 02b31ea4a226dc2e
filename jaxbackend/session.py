"""One model in training with JAX: a pure step over an explicit state, dispatched as the knobs say."""

from collections import deque
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from compare import workloads
from compare.interface import Array, Arrays, Batch, Memory, Refused, RunSpec, State
from jaxbackend import activations, layout, memory, models, optim, precision, tuning
from jaxbackend.losses import softmax_cross_entropy

_KEPT_LOSSES = 4096


class TrainState(NamedTuple):
    """All that a training step reads and writes."""

    parameters: Any
    buffers: Any
    optimizer: Any
    scaling: precision.LossScale | None
    step: jax.Array


class JaxSession:
    """`compare.interface.Session` in JAX."""

    def __init__(self, spec: RunSpec) -> None:
        workload = workloads.get(spec.workload)
        self._spec = spec
        self._policy = precision.policy(spec.precision, spec.device)
        self._device = _device(spec.device)
        with self._policy.scope():
            model = models.build(workload.model.resized(spec.image_size), self._policy)
            self._signature = layout.signature(model)
            model.eval()
            self._eval_graph, _, _ = nnx.split(model, nnx.Param, nnx.BatchStat)
            model.train()
            self._graph, parameters, buffers = nnx.split(model, nnx.Param, nnx.BatchStat)
        self._update = optim.build(workload.optimizer)
        self._state = TrainState(parameters, buffers, None, None, jnp.int32(0))
        self._step = tuning.compiled(self._train_step, spec.knobs)
        self._several = tuning.several(self._train_step, spec.knobs)
        self._inspect = tuning.compiled(self._inspected_step, spec.knobs)
        self._evaluate = jax.jit(self._eval_logits) if spec.knobs["compile"] else self._eval_logits
        self._pool: list[tuple[jax.Array, jax.Array]] = []
        self._stacked: tuple[jax.Array, jax.Array] | None = None
        self._position = 0
        self._losses: deque[jax.Array] = deque(maxlen=_KEPT_LOSSES)

    @property
    def steps_per_dispatch(self) -> int:
        """See `compare.interface.Session`."""
        return self._spec.knobs["steps-per-dispatch"]

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.interface.Session`."""
        return self._signature

    def assign(self, arrays: Arrays) -> None:
        """See `compare.interface.Session`."""
        dtype, old = self._policy.parameter_dtype, self._state
        with self._policy.scope():
            parameters = layout.assign(old.parameters, arrays, dtype, self._device)
            buffers = layout.assign(old.buffers, arrays, dtype, self._device)
            optimizer = self._update.init(parameters)
            scaling = precision.LossScale.initial(self._policy)
            fresh = TrainState(parameters, buffers, optimizer, scaling, jnp.int32(0))
            self._state = jax.device_put(fresh, self._device)

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.interface.Session`."""
        with self._policy.scope():
            self._pool, self._stacked = [], None
            if self._several is None:
                self._pool = [self._placed(batch) for batch in batches]
            else:
                images = np.stack([batch.images for batch in batches])
                self._stacked = self._placed(Batch(images, np.stack([batch.labels for batch in batches])))
        self._position = 0
        self._losses.clear()

    def run(self, steps: int) -> None:
        """See `compare.interface.Session`."""
        with self._policy.scope():
            if self._several is not None and self._stacked is not None:
                while steps >= self.steps_per_dispatch:
                    start = np.int32(self._position)
                    self._state, losses = self._several(self._state, *self._stacked, start)
                    self._losses.append(losses)
                    self._position = (self._position + self.steps_per_dispatch) % len(self._stacked[0])
                    steps -= self.steps_per_dispatch
            for _ in range(steps):
                self._state, loss = self._step(self._state, *self._next_batch())
                self._losses.append(loss)

    def wait(self) -> None:
        """See `compare.interface.Session`."""
        jax.block_until_ready(self._state)

    def losses(self) -> Array:
        """See `compare.interface.Session`."""
        return np.concatenate([np.atleast_1d(loss) for loss in self._losses])

    def logits(self, images: Array) -> Array:
        """See `compare.interface.Session`."""
        with self._policy.scope():
            placed, _ = self._placed(Batch(images, np.zeros(len(images), np.int32)))
            logits = self._evaluate(self._state.parameters, self._state.buffers, placed)
            return np.asarray(logits.astype(self._policy.parameter_dtype))

    def inspect(self, batch: Batch) -> Arrays:
        """See `compare.interface.Session`."""
        with self._policy.scope():
            before = layout.export(self._state.parameters)
            self._state, internals = self._inspect(self._state, *self._placed(batch))
            activation, gradients = internals.pop("activation"), internals.pop("gradient")
            after = layout.export(self._state.parameters)
            wide = {name: np.asarray(array.astype(self._policy.parameter_dtype)) for name, array in activation.items()}
            arrays = {f"activation/{name}": array for name, array in wide.items()}
            arrays |= {name: np.asarray(array) for name, array in internals.items()}
            arrays |= {f"gradient/{name}": array for name, array in layout.export(gradients).items()}
            arrays |= {f"update/{name}": after[name] - before[name] for name in before}
            return arrays | {f"buffer/{name}": array for name, array in layout.export(self._state.buffers).items()}

    def export(self) -> State:
        """See `compare.interface.Session`."""
        state = self._state
        return State(
            parameters=layout.export(state.parameters),
            buffers=layout.export(state.buffers),
            optimizer=optim.export(state.optimizer),
            step=int(state.step),
        )

    def memory(self) -> Memory:
        """See `compare.interface.Session`."""
        with self._policy.scope():
            program = None
            if self._spec.knobs["compile"]:
                program = self._step.lower(self._state, *self._next_batch()).compile()  # type: ignore[attr-defined]
            return memory.report(self._device, program)

    def settings(self) -> dict[str, Any]:
        """See `compare.interface.Session`."""
        knobs, policy = self._spec.knobs, self._policy
        with policy.scope():
            copied = jax.tree.map(jnp.copy, self._state)
            self._step(copied, *self._next_batch())
            layer_outputs = jax.eval_shape(self._layer_outputs, self._state, self._next_batch()[0])
            products = jax.config.jax_default_matmul_precision
        return {
            "parameter_dtype": str(jax.tree.leaves(self._state.parameters)[0].dtype),
            "compute_dtype": str(next(iter(layer_outputs.values())).dtype),
            "tf32": None if policy.tf32 is None else products == "tensorfloat32",
            "loss_scaling": self._state.scaling is not None,
            "batch_size": len(self._next_batch()[1]),
            "device": self._device.device_kind,
            "compile": bool(knobs["compile"]) and self._step._cache_size() > 0,  # type: ignore[attr-defined]
            "donation": all(leaf.is_deleted() for leaf in jax.tree.leaves(copied.parameters)),
            "steps-per-dispatch": self.steps_per_dispatch,
            "deterministic": self._spec.deterministic,
        }

    def _train_step(self, state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, jax.Array]:
        state, internals = self._inspected_step(state, images, labels)
        return state, internals["loss"]

    def _inspected_step(self, state: TrainState, images: jax.Array, labels: jax.Array) -> tuple[TrainState, Any]:
        def objective(parameters: Any) -> tuple[jax.Array, Any]:
            model = nnx.merge(self._graph, parameters, state.buffers)
            with activations.recorded(model) as outputs:
                logits = model(images)
            loss = softmax_cross_entropy(logits, labels, self._policy.parameter_dtype)
            internals = {"activation": outputs, "logits": logits.astype(loss.dtype), "loss": loss}
            return precision.scaled(loss, state.scaling), (internals, nnx.state(model, nnx.BatchStat))

        scaled_gradients, (internals, buffers) = jax.grad(objective, has_aux=True)(state.parameters)
        gradients, finite = precision.unscaled(scaled_gradients, state.scaling)
        updates, optimizer = self._update.update(gradients, state.optimizer, state.parameters)
        parameters, scaling = optax.apply_updates(state.parameters, updates), state.scaling
        if finite is not None and scaling is not None:  # an overflow skips the update; batch norm has moved all the same
            old = state.parameters, state.optimizer
            parameters, optimizer = jax.tree.map(
                lambda new, kept: jnp.where(finite, new, kept), (parameters, optimizer), old
            )
            scaling = scaling.update(finite)
        new = TrainState(parameters, buffers, optimizer, scaling, state.step + 1)
        return new, internals | {"gradient": gradients}

    def _layer_outputs(self, state: TrainState, images: jax.Array) -> dict[str, jax.Array]:
        model = nnx.merge(self._graph, state.parameters, state.buffers)
        with activations.recorded(model) as outputs:
            model(images)
        return outputs

    def _eval_logits(self, parameters: Any, buffers: Any, images: jax.Array) -> jax.Array:
        return nnx.merge(self._eval_graph, parameters, buffers)(images)

    def _next_batch(self) -> tuple[jax.Array, jax.Array]:
        if self._stacked is not None:
            index = self._position % len(self._stacked[0])
            batch = self._stacked[0][index], self._stacked[1][index]
        else:
            batch = self._pool[self._position % len(self._pool)]
        self._position += 1
        return batch

    def _placed(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        images = np.asarray(batch.images, self._policy.parameter_dtype)
        return jax.device_put((images, batch.labels), self._device)


def _device(name: str) -> jax.Device:
    try:
        return jax.devices(name)[0]
    except RuntimeError as error:
        raise Refused(f"jax sees no {name} device: {error}") from error


class JaxBackend:
    """`compare.interface.Backend` of JAX."""

    name = "jax"

    def versions(self) -> dict[str, str]:
        """See `compare.interface.Backend`."""
        return {package: version(package) for package in ("jax", "jaxlib", "flax", "optax")}

    def open(self, spec: RunSpec) -> JaxSession:
        """See `compare.interface.Backend`."""
        return JaxSession(spec)

    def out_of_memory(self, error: BaseException) -> bool:
        """See `compare.interface.Backend`."""
        return memory.out_of_memory(error)


BACKEND = JaxBackend()
