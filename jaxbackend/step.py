"""The training step: forward, loss, backward and update, a pure function over an explicit state."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from compare.base import names
from compare.base.interface import KnobValues
from compare.base.profiles import UPDATE_SCOPE
from jaxbackend import overlap, parallel, precision, tuning
from jaxbackend.losses import TaskLoss, softmax_cross_entropy
from jaxbackend.only import wide_sums
from jaxbackend.only.functional import Functional
from jaxbackend.only.images import Images
from jaxbackend.only.loss_scale import LossScale, scale_loss, unscale
from jaxbackend.only.scans import loop, scan_steps
from jaxbackend.only.split_programs import Pieces
from jaxbackend.pixels import values

# Whether a mapped step returns each internal once a device (0) or once for all devices (None).
_INTERNALS = {"activation": 0, "logits": 0, "loss": None, "gradient": None}


class TrainState(NamedTuple):
    """All state that a training step reads and writes."""

    parameters: Any
    buffers: Any
    optimizer: Any
    scaling: LossScale | None
    step: jax.Array


class TrainingStep:
    """One model's training step and evaluation, turned into programs as the knobs say.

    A step takes its batch in `accumulate` equal micro-batches, one after the other. Batch norm sees each micro-batch
    alone. Their mean losses and their gradients are averaged, and the gradients make one update.

    Args:
        model: the model as functions of its parameters and buffers.
        update: the optimizer.
        policy: the dtypes of parameters and products, and the loss scale.
        knobs: the value of every knob.
        strategy: where arrays lie, and how programs are compiled for these devices.
        smoothing: how much of a label is spread over all classes.
        accumulate: the number of micro-batches.
        task_loss: the loss of a user's own outputs; None for cross-entropy.

    Attributes:
        widened_sums: the number of terms of the longest sum that `jaxbackend.only.wide_sums` changes, by layer.
    """

    def __init__(
        self,
        model: Functional,
        update: optax.GradientTransformationExtraArgs,
        policy: precision.Policy,
        knobs: KnobValues,
        strategy: parallel.Strategy,
        *,
        smoothing: float,
        accumulate: int,
        task_loss: TaskLoss | None,
    ) -> None:
        self._model, self._update, self._policy = model, update, policy
        self.widened_sums: dict[str, int] = {}
        self._smoothing, self._accumulate, self._task_loss = smoothing, accumulate, task_loss
        self._overlaps, self.overlapped = bool(knobs["overlap-exchanges"]), 0
        self._scan = jax.lax.scan if knobs["compile"] else loop
        self._strategy = strategy
        self._compiled_inspect = strategy.compile(self._train_step, knobs, _INTERNALS)
        # A step that returns only the loss has other pieces, which would have to be compiled, too.
        self.program = self._train_inspected if knobs["pieces"] else strategy.compile(self.train, knobs)
        scan = scan_steps(self.train, knobs)
        self.several = None if scan is None else strategy.compile(scan, knobs, several=True)
        undonated = {**knobs, "donation": False}
        self._evaluate = tuning.compile_step(self._eval_logits, undonated, strategy.device.platform)
        self._run_layer = (
            jax.jit(self._model.run_layer, static_argnums=(0, 4)) if knobs["compile"] else self._model.run_layer
        )

    def __call__(self, state: TrainState, images: Images, labels: jax.Array) -> tuple[TrainState, jax.Array]:
        """Train one step on images [N, H, W, C] and labels [N] or [N, H, W], and return the new state and the loss."""
        return self.program(state, images, labels)

    def inspect(self, state: TrainState, images: Images, labels: jax.Array) -> tuple[TrainState, dict[str, Any]]:
        """Train the same step and return its internals: activations, logits, loss, gradients of the unscaled loss."""
        state, internals = self._compiled_inspect(state, images, labels)
        for kind in ("activation", "logits"):
            internals[kind] = jax.tree.map(self._strategy.join, internals[kind])
        return state, internals

    def evaluate(self, state: TrainState, images: Images) -> Any:
        """Return evaluation-mode logits [*labels' shape, classes] of images [N, H, W, C] in the parameters' dtype.

        With a `task_loss` they are a tuple of all outputs.
        """
        return self._evaluate(self._single(state), images)

    def layer_outputs(self, state: TrainState, images: Images) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shape and dtype of every layer's output in evaluation mode."""
        return jax.eval_shape(self._eval_outputs, self._single(state), images)

    def run_layer(self, state: TrainState, layer: str, inputs: jax.Array, training: bool) -> jax.Array:
        """Return one layer's output for inputs [N, ...], all in neutral layout.

        Raises:
            Refused: as `jaxbackend.only.functional.Functional.run_layer`.
        """
        return self._run_layer(layer, state.parameters, self._strategy.first(state.buffers), inputs, training)

    @property
    def programs(self) -> int:
        """The number of programs of the training step, 0 if it runs op by op."""
        if isinstance(self._compiled_inspect, Pieces):
            return len(self._compiled_inspect)
        # Only compiled programs have a cache.
        return sum(getattr(program, "_cache_size", int)() for program in (self.program, self.several))

    def initial(self, parameters: Any, buffers: Any) -> TrainState:
        """Return the state before the first step."""
        scaling = LossScale.initial(self._policy)
        optimizer = jax.jit(self._update.init)(parameters)  # op by op, XLA would compile a program for each shape
        return TrainState(parameters, buffers, optimizer, scaling, jnp.int32(0))

    def _single(self, state: TrainState) -> TrainState:
        return state._replace(buffers=self._strategy.first(state.buffers))

    def train(self, state: TrainState, images: Images, labels: jax.Array) -> tuple[TrainState, jax.Array]:
        """Train one step like a call, as a function that can be traced."""
        state, internals = self._train_step(state, images, labels, recorded=False)
        return state, internals["loss"]

    def _train_inspected(self, state: TrainState, images: Images, labels: jax.Array) -> tuple[TrainState, jax.Array]:
        state, internals = self._compiled_inspect(state, images, labels)
        return state, internals["loss"]

    def _train_step(
        self, state: TrainState, images: Images, labels: jax.Array, recorded: bool = True
    ) -> tuple[TrainState, dict[str, Any]]:
        gradients, internals, buffers = self._gradients(state, values(images), labels, recorded)
        gradients, internals["loss"] = self._strategy.reduce(gradients, internals["loss"])
        with jax.named_scope(UPDATE_SCOPE):
            return self._descend(state, gradients, internals, buffers)

    def _descend(
        self, state: TrainState, gradients: Any, internals: dict[str, Any], buffers: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        gradients, finite = unscale(gradients, state.scaling)
        updates, optimizer = self._update.update(gradients, state.optimizer, state.parameters, step=state.step)
        new = optax.apply_updates(state.parameters, updates), optimizer
        scaling = state.scaling
        if finite is not None and scaling is not None:  # overflow skips the update, but batch norm moves
            old = state.parameters, state.optimizer
            new = jax.tree.map(lambda updated, present: jnp.where(finite, updated, present), new, old)
            scaling = scaling.update(finite)
        return TrainState(new[0], buffers, new[1], scaling, state.step + 1), internals | {"gradient": gradients}

    def _gradients(
        self, state: TrainState, images: jax.Array, labels: jax.Array, recorded: bool
    ) -> tuple[Any, dict[str, Any], Any]:
        """Return the gradients of the scaled loss, the internals of the forward pass and the new buffers."""
        objective = self._widen(jax.grad(partial(self._objective, recorded=recorded), has_aux=True))
        parameters = self._strategy.copy(state.parameters)
        if self._accumulate == 1:
            gradients, (internals, buffers) = objective(parameters, state, images, labels)
            return gradients, internals, buffers

        def add(carry: tuple[Any, Any], part: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, Any], dict[str, Any]]:
            total, buffers = carry
            gradients, (internals, buffers) = objective(parameters, state._replace(buffers=buffers), *part)
            return (jax.tree.map(jnp.add, total, gradients), buffers), internals

        start = jax.tree.map(jnp.zeros_like, parameters), state.buffers
        parts = jax.tree.map(lambda a: a.reshape(self._accumulate, -1, *a.shape[1:]), (images, labels))
        (gradients, buffers), internals = self._scan(add, start, parts)
        loss = internals.pop("loss").sum()
        whole = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), internals)
        return gradients, whole | {"loss": loss}, buffers

    def _objective(
        self, parameters: Any, state: TrainState, images: jax.Array, labels: jax.Array, recorded: bool
    ) -> Any:
        with overlap.overlap_exchanges(wanted=self._overlaps) as count_taken:
            logits, buffers, outputs = self._model.train(parameters, state.buffers, images, recorded)
        self.overlapped = count_taken()
        if self._task_loss is not None:
            loss, logits = self._task_loss(logits, labels)
        else:
            logits = logits.astype(self._policy.parameter_dtype)
            loss = softmax_cross_entropy(logits, labels, self._smoothing)
        loss = loss / self._accumulate
        internals = {"activation": outputs, "logits": logits, "loss": loss}
        return scale_loss(loss, state.scaling), (internals, buffers)

    def _eval_logits(self, state: TrainState, images: Images) -> Any:
        logits, _ = self._widen(self._model.evaluate)(state.parameters, state.buffers, values(images))
        if self._task_loss is not None:
            return jax.tree.map(self._strategy.whole, self._task_loss.collect(logits))
        return self._strategy.whole(logits.astype(self._policy.parameter_dtype))

    def _widen(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return wide_sums.widen_if_narrow(function, self._policy, self._strategy.device, self._keep_sum)

    def _keep_sum(self, scopes: str, terms: int) -> None:
        layer = names.find_layer(scopes, self._model.layers)
        self.widened_sums[layer] = max(terms, self.widened_sums.get(layer, 0))

    def _eval_outputs(self, state: TrainState, images: Images) -> dict[str, jax.Array]:
        return self._model.evaluate(state.parameters, state.buffers, values(images))[1]
