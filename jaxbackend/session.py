"""One model in training with JAX: it takes batches, dispatches steps and reads results back."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from compare.base import descriptions, task, workloads
from compare.base.interface import (
    KEPT_LOSSES,
    OWN_WEIGHTS,
    Array,
    Arrays,
    Batch,
    Kernel,
    Memory,
    RunSpec,
    State,
    is_buffer,
)
from compare.base.operation_counts import Operation
from compare.base.process_group import RankInfo
from compare.base.profiles import XLA, Peaks, Profile
from compare.base.workloads import PAIR, ModelSpec
from compare.kernels import plans
from jaxbackend import (
    activations,
    exchange,
    layout,
    memory,
    models,
    operations,
    optim,
    parallel,
    peaks,
    precision,
    profile,
    rematerialisation,
    resident,
    resources,
    stream,
    tuning,
    user_models,
)
from jaxbackend.only import flags, kernel_calls
from jaxbackend.only.functional import Functional, Twin, shapes
from jaxbackend.step import TrainingStep


class JaxSession:
    """`compare.base.interface.Session` in JAX."""

    def __init__(self, spec: RunSpec, place: RankInfo | None = None) -> None:
        workload = descriptions.read_workload(spec)
        self._spec, self._rule = spec, workload.optimizer
        self._policy = precision.policy(spec.precision, spec.device, spec.loss_scale)
        self._strategy = strategy = parallel.choose_strategy(
            str(spec.knobs["parallel"]), spec.devices, spec.batch_norm, spec.device, place
        )
        self._device = strategy.device
        self._policy = replace(self._policy, synchronised=strategy.synchronised)
        if spec.knobs["fused-batch-norm"]:
            kernel_calls.load()
            self._policy = replace(self._policy, fuses_batch_norm=True)
            size = jnp.dtype(self._policy.compute_dtype).itemsize
            plans.use(self._device.device_kind, size, tf32=bool(self._policy.tf32))
        memory.limit(self._device, spec.memory_limit_bytes)
        with self._policy.scope():
            # Torch needs seconds to trace a step, so its processes share what one has traced. JAX needs less than one.
            for device in strategy.local:
                tuning.prepare(spec.knobs, device)
            model = self._model = _model(
                workload.model.resized(spec.image_size),
                self._policy,
                initialised=spec.weights == OWN_WEIGHTS,
                blocks=workloads.list_blocks(workload.model) if spec.knobs["rematerialisation"] else (),
                mesh=strategy.mesh,
            )
            self._step = TrainingStep(
                model,
                optim.build(workload.optimizer, model.leaves),
                self._policy,
                spec.knobs,
                strategy,
                smoothing=workload.label_smoothing,
                accumulate=spec.accumulate,
                task_loss=user_models.make_loss(workload, self._policy),
            )
            self._state = self._step.initial(model.parameters, strategy.spread(model.buffers))
            model.parameters, model.buffers = map(shapes, (model.parameters, model.buffers))
        self._input = (
            stream.Stream(self._step, self._policy, self._device, spec.knobs)
            if spec.knobs["input"] == "stream"
            else resident.Resident(self._step, self._policy, strategy, spec.knobs)
        )
        self._losses: deque[jax.Array] = deque(maxlen=KEPT_LOSSES)

    @property
    def steps_per_dispatch(self) -> int:
        """See `compare.base.interface.Session`."""
        return int(self._spec.knobs["steps-per-dispatch"])

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.base.interface.Session`."""
        return self._model.signature

    def assign(self, arrays: Arrays) -> None:
        """See `compare.base.interface.Session`."""
        old, leaves = self._state, self._model.leaves
        with self._policy.scope():
            values = (
                layout.assign(variables, leaves, arrays)
                for variables in (old.parameters, self._strategy.first(old.buffers))
            )
            parameters, buffers = jax.device_put(tuple(values), self._device)
            state = self._strategy.everywhere(self._step.initial(parameters, buffers))
            self._state = state._replace(buffers=self._strategy.spread(state.buffers))

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.base.interface.Session`."""
        if len({batch.form for batch in batches}) > 1:
            raise ValueError("a session takes batches of one size")
        with self._policy.scope():
            self._input.feed(batches)
        self._losses.clear()

    def run(self, steps: int) -> None:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            while steps:
                taken, self._state, losses = self._input.dispatch(self._state, steps)
                self._losses.append(losses)
                steps -= taken

    def wait(self) -> None:
        """See `compare.base.interface.Session`."""
        self._input.wait(self._state)

    def losses(self) -> Array:
        """See `compare.base.interface.Session`."""
        if not self._losses:
            return np.zeros(0)
        return np.concatenate([np.atleast_1d(loss) for loss in jax.device_get([*self._losses])])[-KEPT_LOSSES:]

    def logits(self, images: Array) -> Array:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            return _pack(self._step.evaluate(self._state, self._place(images)))

    def inspect(self, batch: Batch) -> Arrays:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            before = layout.fetch(self._export(self._state.parameters))
            self._state, internals = self._step.inspect(self._state, *self._input.place(batch))
            dtype, outputs, gradients = self._policy.parameter_dtype, internals["activation"], internals["gradient"]
            part = self._strategy.part
            arrays = {f"activation/{name}": part(array.astype(dtype)) for name, array in outputs.items()}
            logits = jax.tree.map(part, internals["logits"])
            arrays |= {"logits": _pack(logits), "loss": internals["loss"]}
            arrays |= {f"gradient/{name}": array for name, array in self._export(gradients).items()}
            kinds = {
                "update": self._export(self._state.parameters),
                "buffer": self._export(self._strategy.first(self._state.buffers)),
            }
            state = {f"{kind}/{name}": array for kind, named in kinds.items() for name, array in named.items()}
            fetched = layout.fetch(arrays, owned=True) | layout.fetch(state)
        for name, array in before.items():
            fetched[f"update/{name}"] -= array  # on the host: JAX would compile a program for every shape
        return fetched

    def export(self) -> State:
        """See `compare.base.interface.Session`."""
        state = self._state
        return State(
            parameters=layout.fetch(self._export(state.parameters)),
            buffers=layout.fetch(self._export(self._strategy.first(state.buffers))),
            optimizer=optim.export(state.optimizer, self._model.leaves),
            step=int(state.step),
        )

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            return np.asarray(self._step.run_layer(self._state, layer, self._place(inputs), training))

    def memory(self) -> Memory:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            return memory.report(self._strategy.local, self._lowered if self._is_one_program else None)

    def kernels(self, steps: int) -> list[Kernel]:
        """See `compare.base.interface.Session`."""

        def work() -> None:
            self.run(steps)
            self.wait()

        return profile.kernels(work)

    def watch(self) -> None:
        """See `compare.base.interface.Session`. XLA's programs name their layers themselves."""

    def profile(self, steps: int) -> Profile:
        """See `compare.base.interface.Session`."""

        def work() -> None:
            self.run(steps)
            self.wait()

        events = profile.events(work)
        with self._policy.scope():
            program, arguments = self._input.dispatch_program()
            programs = [program.lower(self._state, *arguments).compile().as_text()] if self._is_one_program else []
        return Profile(
            XLA, self._spec.device, steps, events, programs, layers=self._layers(), parameters=self._parameter_sizes()
        )

    def operations(self) -> list[Operation]:
        """See `compare.base.interface.Session`."""
        with self._policy.scope():
            arguments = (self._state, *self._input.first())
            return operations.count(self._step.train, arguments, self._layers(), self._parameter_sizes())

    def peaks(self) -> Peaks:
        """See `compare.base.interface.Session`."""
        return peaks.measure(self._policy, self._device)

    def settings(self) -> dict[str, Any]:
        """See `compare.base.interface.Session`."""
        knobs, policy = self._spec.knobs, self._policy
        with policy.scope():
            copied = jax.tree.map(jnp.copy, self._state)
            images, labels = self._input.first()
            program, arguments = self._input.dispatch_program()  # the timed program, which is compiled already
            program(copied, *arguments)
            outputs = self._step.layer_outputs(self._state, jax.tree.map(self._strategy.join, images))
            rates = optim.rates(self._rule)
            uses_tf32 = precision.uses_tf32()
            recomputed = bool(knobs["rematerialisation"]) and rematerialisation.count_recomputed(self._lowered())
            reduces = len(self._strategy.devices) > 1 and knobs["compile"]
            reduced = exchange.reduction_dtype(program.lower(self._state, *arguments).compile()) if reduces else None
        return {
            "parameter_dtype": str(jax.tree.leaves(self._state.parameters)[0].dtype),
            "compute_dtype": str(activations.product(self._model.layers, outputs).dtype),
            "layer_dtypes": {name: str(output.dtype) for name, output in outputs.items()},
            "tf32": None if policy.tf32 is None else uses_tf32,
            "loss_scaling": self._state.scaling is not None,
            "batch_size": len(self._strategy.part(self._strategy.join(labels))),
            "accumulate": self._spec.accumulate,
            "learning_rates": rates,
            **resources.read_settings(self._device, len(self._strategy.devices)),
            "parallel": knobs["parallel"],
            "devices": len(self._strategy.devices),
            "batch_norm": self._strategy.batch_norm,
            "reduction_dtype": reduced,
            "overlap-reduction": reduced is not None and flags.hides_latency(self._device),
            "overlap-exchanges": self._step.overlapped > 0,
            "compile": self._step.programs > 0,
            "pieces": bool(knobs["pieces"]) and self._step.programs > 1,
            "donation": all(leaf.is_deleted() for leaf in jax.tree.leaves(copied.parameters)),
            "steps-per-dispatch": self.steps_per_dispatch,
            "rematerialisation": recomputed > 0,
            "fused-batch-norm": self._policy.fuses_batch_norm,
            "input": self._input.name,
            "input_dtype": str(self._input.dtype),
            "widened_sums": self._step.widened_sums,
            **tuning.read_settings(self._spec, policy, self._device, compiled=self._step.programs > 0),
        }

    @property
    def _is_one_program(self) -> bool:
        return bool(self._spec.knobs["compile"] and not self._spec.knobs["pieces"])

    def _layers(self) -> dict[str, str]:
        """Return the kind of every layer by its name."""
        return {name: kind for name, kind in self._model.layers.items() if name}

    def _parameter_sizes(self) -> dict[str, int]:
        return {name: math.prod(shape) for name, shape in self._model.signature.items() if not is_buffer(name)}

    def _lowered(self) -> jax.stages.Lowered:
        # The type includes uncompiled steps, which have no such method.
        return self._step.program.lower(self._state, *self._input.first())  # type: ignore[attr-defined]

    def _place(self, images: Array) -> jax.Array:
        return self._strategy.everywhere(np.asarray(images, self._policy.parameter_dtype))

    def _export(self, state: Any) -> dict[str, jax.Array]:
        arrays = layout.export(state, self._model.leaves)
        return {name: arrays[name] for name in self._model.signature if name in arrays}


def _pack(logits: Any) -> Array:
    """Return logits, or the tuple of a model's outputs, as one array on the host."""
    outputs = jax.device_get(logits if isinstance(logits, tuple) else (logits,))
    return np.asarray(task.pack_outputs(outputs, lambda rows: np.concatenate(rows, axis=1)))


def _model(
    spec: ModelSpec, policy: precision.Policy, *, initialised: bool, blocks: Sequence[str], mesh: AbstractMesh | None
) -> Functional:
    if spec.family == PAIR:
        return user_models.adopt(spec, policy, initialised)
    return Twin(models.build(spec, policy), blocks, mesh)
