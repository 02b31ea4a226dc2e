"""One model that answers requests with JAX: forward passes in evaluation mode (`compare.base.requests`)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from compare.base import descriptions
from compare.base.interface import INFER, Array, Arrays, Batch, Kernel, Memory, Refused, RunSpec, State
from compare.base.names import join_path
from compare.base.requests import FED, KEPT, Answers
from compare.base.trace import PRODUCTS
from compare.base.workloads import PAIR
from jaxbackend import activations, layout, memory, models, parallel, precision, profile, resources, tuning, user_models
from jaxbackend.only import executables, fixed_buffers, flags, folded_arrays, wide_sums
from jaxbackend.only.functional import Functional, Twin, shapes

Program = Callable[..., Any]
"""Takes the variables and images, and returns logits. With fixed buffers see `fixed_buffers.answer_next`."""


class InferenceSession:
    """`compare.base.requests.InferenceSession` in JAX.

    The device has the weights as requests read them: folded if the knobs say so, and a twin's kernels of convolutions
    and dense layers in the compute dtype. A captured program takes and writes `fixed_buffers.Buffers`.
    """

    task = INFER
    steps_per_dispatch = 1

    def __init__(self, spec: RunSpec) -> None:
        workload = descriptions.read_workload(spec)
        self._spec, self._knobs = spec, spec.knobs
        self._policy = precision.policy(spec.precision, spec.device)
        flags.choose_dispatch(inline=bool(spec.knobs["inline-dispatch"]))
        self._device = parallel.choose_strategy("none", 1, spec.batch_norm, spec.device, None).device
        self._is_own = workload.model.family == PAIR
        self._folded: dict[str, str] = {}
        memory.limit(self._device, spec.memory_limit_bytes)
        with self._policy.scope():
            tuning.prepare(spec.knobs, self._device)
            model = self._model = self._make_model(spec)
            self._shapes = shapes((model.parameters, model.buffers))
            model.parameters, model.buffers = self._shapes
        self._variables: tuple[jax.Array, ...] = ()
        self._passed: tuple[jax.Array, ...] = ()  # the variables that a program takes, and does not hold
        self._tree: Any = None
        self._programs: dict[tuple[int, ...], Program] = {}
        self._was_there: dict[tuple[int, ...], bool] = {}
        self._in_place = bool(spec.knobs["compile"] and spec.knobs["graph-capture"]) and not spec.knobs["exported"]
        self._pool: jax.Array | list[jax.Array] = []  # in place one array [FED, N, ...]
        self._buffers: fixed_buffers.Buffers | None = None
        self._answer_shapes: dict[tuple[int, ...], jax.ShapeDtypeStruct] = {}
        self._fed = self._requests = 0  # batches, and requests since then
        self._answers = Answers(self._fetch)

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.base.interface.Session`."""
        return self._model.signature

    def assign(self, arrays: Arrays) -> None:
        """See `compare.base.interface.Session`."""
        folded = folded_arrays.fold(arrays, self._folded) if self._folded else arrays
        with self._policy.scope():
            values = tuple(layout.assign(shape, self._model.leaves, folded) for shape in self._shapes)
            variables, self._tree = jax.tree.flatten((self._cast_kernels(values[0]), values[1]))
            self._variables = tuple(jax.device_put(variables, self._device))
        if self._knobs["constant-weights"]:
            self._programs = {}  # they hold the former weights
        else:
            self._passed = self._variables
        self._answers.reset()

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.base.interface.Session`."""
        if len({batch.form for batch in batches}) > 1:
            raise ValueError("a session takes batches of one size")
        if self._in_place:
            self._pool, self._buffers = self._place_together([batch.values() for batch in batches])
        else:
            self._pool = [self._place(batch.values()) for batch in batches]
        self._fed, self._requests = len(batches), 0
        self._answers.feed([batch.labels for batch in batches])

    def run(self, steps: int) -> None:
        """See `compare.base.interface.Session`."""
        program = self._program(*self._request())
        for _ in range(steps):
            index = self._requests % self._fed
            if self._buffers is None:
                answer = program(self._passed, self._pool[index])
            else:
                answer = self._requests % KEPT
                self._buffers = program(self._buffers, self._passed, self._pool)
            self._answers.add(answer, index)
            self._requests += 1

    def wait(self) -> None:
        """See `compare.base.interface.Session`."""
        newest: Any = self._answers.newest if self._buffers is None else self._buffers.answers  # no stub of is_ready
        if newest is None:
            return
        # `block_until_ready` sleeps, and waking up costs a short request 0.07 ms. torch's synchronisation spins, too.
        while self._device.platform != "cpu" and not newest.is_ready():
            pass
        newest.block_until_ready()

    def losses(self) -> Array:
        """See `compare.base.interface.Session`."""
        return self._answers.losses()

    def answers(self) -> list[Array]:
        """See `compare.base.requests.InferenceSession`."""
        return self._answers.logits()

    def logits(self, images: Array) -> Array:
        """See `compare.base.interface.Session`."""
        if self._in_place:
            pool, buffers = self._place_together([images])
            return np.asarray(self._program(pool, buffers)(buffers, self._passed, pool).answers[0])
        on_device = self._place(images)
        return np.asarray(self._program(on_device)(self._passed, on_device))

    def inspect(self, batch: Batch) -> Arrays:
        """See `compare.base.interface.Session`."""
        images = self._place(batch.values())
        with self._policy.scope():
            program = tuning.compile_step(self._answer_and_record, self._knobs, self._device.platform)
            logits, outputs = program(self._variables, images)
            dtype = self._policy.parameter_dtype
            arrays = {
                f"activation/{name}": array.astype(dtype) for name, array in outputs.items() if name not in self._folded
            }
            return layout.fetch(arrays | {"logits": logits})

    def export(self) -> State:
        """See `compare.base.interface.Session`."""
        self._answers.logits()
        return State({}, {}, {}, self._answers.count)

    def run_layer(self, layer: str, inputs: Array, training: bool) -> Array:
        """See `compare.base.interface.Session`."""
        del inputs, training
        raise Refused(f"no layer {layer!r} runs alone in a session that answers requests; allowed: --task train")

    def memory(self) -> Memory:
        """See `compare.base.interface.Session`."""
        held = sum(array.nbytes for array in self._variables) if self._knobs["constant-weights"] else 0

        def lower() -> jax.stages.Lowered:
            return self._lower(*self._request())

        with self._policy.scope():
            return memory.report([self._device], lower if self._knobs["compile"] else None, held)

    def kernels(self, steps: int) -> list[Kernel]:
        """See `compare.base.interface.Session`."""

        def work() -> None:
            self.run(steps)
            self.wait()

        return profile.kernels(work)

    def program(self) -> str:
        """See `compare.base.requests.InferenceSession`."""
        if self._knobs["exported"]:
            was_there = self._was_there[self._pool[0].shape]
            return f"{'loaded, and compiled before' if was_there else 'compiled anew, and kept'} by XLA"
        return "compiled by jax.jit" if self._knobs["compile"] else "run op by op"

    def settings(self) -> dict[str, Any]:
        """See `compare.base.interface.Session`."""
        policy, compiled = self._policy, bool(self._knobs["compile"]) and bool(self._programs)
        with policy.scope():
            outputs = jax.eval_shape(self._answer_and_record, self._variables, self._pool[0])[1]
            uses_tf32 = precision.uses_tf32()
        return {
            "parameter_dtype": str(np.dtype(policy.parameter_dtype)),
            "compute_dtype": str(activations.product(self._model.layers, outputs).dtype),
            "tf32": None if policy.tf32 is None else uses_tf32,
            "batch_size": len(self._pool[0]),
            "batch_norm": self._spec.batch_norm,
            "devices": 1,
            **resources.read_settings(self._device, 1),
            "compile": compiled,
            "constant-weights": compiled and self._takes_images_alone(),
            "exported": bool(self._was_there),
            "fold-batch-norm": bool(self._folded),
            "input_dtype": str(self._pool[0].dtype),
            **tuning.read_settings(self._spec, policy, self._device, compiled=compiled),
        }

    def _make_model(self, spec: RunSpec) -> Functional:
        model = descriptions.read_workload(spec).model.resized(spec.image_size)
        if self._is_own:
            return user_models.adopt(model, self._policy)
        twin = models.build(model, self._policy)
        if self._knobs["fold-batch-norm"]:
            self._folded = folded_arrays.mark_pairs(twin)
        return Twin(twin)

    def _cast_kernels(self, parameters: Any) -> Any:
        """Return parameters with a twin's kernels in the compute dtype, to which its layers would cast them."""
        if self._is_own:
            return parameters
        flat: dict[Any, Any] = traverse_util.flatten_dict(parameters)
        return traverse_util.unflatten_dict(
            {
                path: array.astype(self._policy.compute_dtype)
                if path[-1] == "kernel" and self._model.layers.get(join_path(path[:-1])) in PRODUCTS
                else array
                for path, array in flat.items()
            }
        )

    def _fetch(self, answer: Any) -> Array:
        """Return an answer, or the one in that place of the buffers."""
        return np.asarray(answer if self._buffers is None else self._buffers.answers[answer])

    def _place(self, images: Array) -> jax.Array:
        """Return images on the device, in the dtype that a twin's first layer, a convolution, would cast them to."""
        dtype = self._policy.parameter_dtype if self._is_own else self._policy.compute_dtype
        with self._policy.scope():
            return jax.device_put(np.asarray(images, dtype), self._device)

    def _place_together(self, batches: Sequence[Array]) -> tuple[jax.Array, fixed_buffers.Buffers]:
        """Return `FED` batches as one array on the device, and the buffers of their answers.

        Fewer batches repeat, so that all programs for a batch size are one.
        """
        pool = self._place(np.stack([batches[index % len(batches)] for index in range(max(FED, len(batches)))]))
        with self._policy.scope():
            if (answer := self._answer_shapes.get(pool.shape)) is None:
                images = jax.ShapeDtypeStruct(pool.shape[1:], pool.dtype)
                answer = self._answer_shapes[pool.shape] = jax.eval_shape(self._answer, self._variables, images)
            return pool, fixed_buffers.make(answer, len(batches), self._device)

    def _request(self) -> tuple[jax.Array, fixed_buffers.Buffers | None]:
        """Return the images that a program takes, and its buffers."""
        return (self._pool, self._buffers) if isinstance(self._pool, jax.Array) else (self._pool[0], None)

    def _program(self, images: jax.Array, buffers: fixed_buffers.Buffers | None = None) -> Program:
        """Return the program for images of that shape. Compiled ones do not read JAX's switches again."""
        if (program := self._programs.get(images.shape)) is None:
            with self._policy.scope():
                if self._knobs["exported"]:
                    program, self._was_there[images.shape] = executables.load_or_compile(
                        self._spec, lambda: self._lower(images), (self._variables, images)
                    )
                elif self._knobs["compile"]:
                    program = self._lower(images, buffers).compile()
                else:
                    program = self._run_op_by_op
            self._programs[images.shape] = program
        return program

    def _lower(self, images: jax.Array, buffers: fixed_buffers.Buffers | None = None) -> jax.stages.Lowered:
        answer = self._answer_with_constants if self._knobs["constant-weights"] else self._answer
        if buffers is None:
            compiled: Any = tuning.compile_step(answer, self._knobs, self._device.platform)
            return compiled.lower(self._passed, images)
        step = fixed_buffers.answer_next(answer)
        compiled = tuning.compile_step(step, {**self._knobs, "donation": True}, self._device.platform)
        return compiled.lower(buffers, self._passed, images)

    def _answer_with_constants(self, _: Any, images: jax.Array) -> jax.Array:
        return self._answer(self._variables, images)

    def _takes_images_alone(self) -> bool:
        """Tell whether XLA's program takes no bytes besides images and buffers."""
        images, buffers = self._request()
        program: Any = self._programs[images.shape]
        most = sum(array.nbytes for array in jax.tree.leaves((images, buffers)))
        return program.memory_analysis().argument_size_in_bytes <= most

    def _run_op_by_op(self, variables: Any, images: jax.Array) -> jax.Array:
        with self._policy.scope():
            return self._answer(variables, images)

    def _answer(self, variables: Any, images: jax.Array) -> jax.Array:
        return self._answer_and_record(variables, images)[0]

    def _answer_and_record(self, variables: Any, images: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        parameters, buffers = jax.tree.unflatten(self._tree, variables)
        evaluate = wide_sums.widen_if_narrow(self._model.evaluate, self._policy, self._device)
        logits, outputs = evaluate(parameters, buffers, images)
        return logits.astype(self._policy.parameter_dtype), outputs
