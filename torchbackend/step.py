"""The training step: forward, loss, backward and update, over the state that model and optimizer hold."""

import time
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import nn

from compare.base import task
from compare.base.interface import KnobValues, Refused
from compare.base.process_group import RankInfo
from compare.base.workloads import OptimizerSpec
from torchbackend import activations, optim, parallel, precision, tuning
from torchbackend.losses import TaskLoss, softmax_cross_entropy
from torchbackend.only import buckets, programs
from torchbackend.only.grad_scaler import make_grad_scaler
from torchbackend.only.memory_order import to_channels_last
from torchbackend.only.recorded_layers import RecordedLayer


class TrainingStep:
    """One model's training step and evaluation, turned into programs as the knobs say.

    A step takes its batch in `accumulate` equal micro-batches, one after the other. Batch norm sees each micro-batch
    alone. Their mean losses and their gradients are averaged, and the gradients make one update.

    Args:
        model: the model on its device, with its parameters in the policy's dtype.
        update: the optimizer.
        policy: the dtypes of parameters and products, and the loss scale.
        device: where the model is.
        knobs: the value of every knob.
        place: this process among those that share a batch; None if it is alone.
        layers: the recorded layers, by name.
        paths: the names of these layers by path, as `activations.record` takes them.
        others: the buffers that do not cross.
        inputs: record the layers' inputs, too.
        rule: the update rule, whose schedule and clipping the step applies.
        smoothing: how much of a label is spread over all classes.
        accumulate: the number of micro-batches.
        task_loss: the loss of a user's own outputs; None for cross-entropy.
        inspects_uncompiled: `inspect` runs operation by operation, whatever the knobs say.
    """

    def __init__(
        self,
        model: nn.Module,
        update: torch.optim.Optimizer,
        policy: precision.Policy,
        device: torch.device,
        knobs: KnobValues,
        place: RankInfo | None,
        *,
        layers: Mapping[str, RecordedLayer],
        paths: Mapping[str, str],
        others: Mapping[str, torch.Tensor],
        inputs: bool,
        rule: OptimizerSpec,
        smoothing: float,
        accumulate: int,
        task_loss: TaskLoss | None,
        inspects_uncompiled: bool,
    ) -> None:
        self.model, self.update, self._policy, self._device = model, update, policy, device
        self._layers, self._paths, self._inputs = layers, paths, inputs
        self._copies = place is not None and bool(knobs["compile"])
        self._trained = parallel.wrap(model, device, place, captured=bool(knobs["graph-capture"]))
        self._rule, self._smoothing, self._accumulate = rule, smoothing, accumulate
        self._task_loss = task_loss
        # The steps count themselves in a tensor. A captured graph runs no Python, so a counter in Python would stop.
        where = device if knobs["graph-capture"] else optim.rate_device(update)
        self._clock = torch.zeros((), dtype=torch.float64, device=where)
        self._initial = [(buffer, _initial_value(name, buffer)) for name, buffer in others.items()]
        self.scaling = make_grad_scaler(policy, device.type)
        shared = place is not None
        self._autograd = buckets.make_backward_context(
            compiled=shared and bool(knobs["compiled-autograd"]), shared=shared
        )
        start = time.perf_counter()
        # Programs that were traced before are loaded here, for tensors as they are within autocast.
        self._compile = self._cast(lambda: tuning.compile_step(self._objective, knobs, shared=shared))
        self._program, self._forward = self._cast(self._compile()), self._run_first
        self.loading_seconds = time.perf_counter() - start
        inspected = {**knobs, "compile": knobs["compile"] and not inspects_uncompiled}
        self._inspected_forward = self._cast(tuning.compile_step(self._inspected_objective, inspected, shared=shared))
        self._evaluate = self._cast(self.model)  # it is not timed, and its operations are compiled already

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train one step on images [N, C, H, W] and labels [N] or [N, H, W], and return the loss."""
        self.update.zero_grad()
        shares: list[torch.Tensor] = []
        for part in self._parts(images, labels):
            with self._autograd():
                share, _ = self._forward(*part)
                self.scaling.scale(share).backward()
            shares.append(share.detach())
        self._descend()
        return reduce(torch.add, shares)

    def inspect(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """Train the same step and return its internals: activations, logits, loss, gradients of the unscaled loss."""
        self.update.zero_grad()
        shares, logits, activation = list[torch.Tensor](), list[torch.Tensor](), list[dict[str, torch.Tensor]]()
        for part in self._parts(images, labels):
            record = activations.record(self.model, self._paths, inputs=self._inputs, copies=self._copies)
            with self._autograd():
                with record as outputs:
                    share, part_logits = self._inspected_forward(*part)
                self.scaling.scale(share).backward()
            shares.append(share.detach())
            logits.append(self._to_neutral(part_logits).detach())
            activation.append(outputs)
        scale = self.scaling.get_scale()
        # These change gradients in place: clipping, torch's rules on a GPU, and the next step of several processes.
        is_alone = self._trained is self.model and self._device.type == "cpu"
        is_kept = scale == 1.0 and self._rule.clip_norm is None and is_alone
        gradients = {
            id(p): p.grad if is_kept else p.grad / scale for p in self.model.parameters() if p.grad is not None
        }
        self._descend()
        return {
            "activation": {name: torch.cat([outputs[name] for outputs in activation]) for name in activation[0]},
            "logits": torch.cat(logits),
            "loss": reduce(torch.add, shares),
            "gradient": gradients,
        }

    def evaluate(self, images: torch.Tensor) -> torch.Tensor:
        """Return evaluation-mode logits of images [N, C, H, W] in the parameters' dtype and in neutral layout.

        With a `task_loss` they are all outputs, several of them in one row for each example.
        """
        self.model.eval()
        try:
            with torch.no_grad():
                result = self._evaluate(images)
                if self._task_loss is not None:
                    return self._to_neutral(self._task_loss.collect(result))
                return self._to_neutral(result.to(self._policy.parameter_dtype))
        finally:
            self.model.train()

    def layer_outputs(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return every layer's output in evaluation mode, outside the compiled programs."""
        self.model.eval()
        try:
            with torch.no_grad(), activations.record(self.model, self._paths) as outputs:
                self._cast(self.model)(images)
            return outputs
        finally:
            self.model.train()

    def run_layer(self, layer: str, inputs: torch.Tensor, training: bool) -> torch.Tensor:
        """Return one layer's output for inputs [N, ...], all in neutral layout.

        Raises:
            Refused: there is no such layer.
        """
        if layer not in self._layers:
            raise Refused(f"no layer {layer!r} in this session; allowed: {', '.join(self._layers)}")
        return self._cast(self._layers[layer].run)(inputs, training=training)

    @property
    def programs(self) -> int:
        """The number of programs of the training step, 0 if it runs op by op."""
        return programs.count()

    @property
    def count(self) -> int:
        """The steps taken since `reset`."""
        return int(self._clock)

    def reset(self) -> None:
        """Reset all state that does not cross, in place, because a captured graph holds these tensors."""
        for buffer, value in self._initial:
            buffer.copy_(value)
        for value in (*self._moments(), self._clock):
            value.zero_()
        if self._policy.loss_scale is not None:
            self.scaling.load_state_dict(make_grad_scaler(self._policy, self._device.type).state_dict())

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the present training state in place."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *self._moments(), self._clock]
        saved = [(tensor, tensor.clone()) for tensor in tensors]
        scale = self.scaling.state_dict()

        def restore() -> None:
            self.reset()  # for moments that appear after the snapshot
            with torch.no_grad():
                for tensor, value in saved:
                    tensor.copy_(value)
            if self._policy.loss_scale is not None:
                self.scaling.load_state_dict(scale)

        return restore

    def _parts(self, images: torch.Tensor, labels: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the micro-batches of a batch."""
        if self._accumulate == 1:
            return [(images, labels)]
        return list(zip(images.chunk(self._accumulate), labels.chunk(self._accumulate), strict=True))

    def _descend(self) -> None:
        if not self._rule.schedule.is_constant:
            optim.schedule(self.update, self._rule, self._clock)
        self._clock += 1
        if self._rule.clip_norm is not None:
            self.scaling.unscale_(self.update)
            optim.clip(self.update, self._rule.clip_norm)
        self.scaling.step(self.update)
        self.scaling.update()

    def _moments(self) -> list[torch.Tensor]:
        states = self.update.state.values()
        return [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]

    def _to_neutral(self, logits: Any) -> torch.Tensor:
        if self._task_loss is None:
            return to_channels_last(logits)
        return task.pack_outputs(logits, lambda rows: torch.cat(rows, dim=1))

    def _run_first(self, *part: torch.Tensor) -> Any:
        self._forward, result = programs.run_first(
            self._program, lambda: self._cast(self._compile()), self._objective, *part
        )
        return result

    def _objective(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Any]:
        result = self._trained(images)
        if self._task_loss is not None:
            loss, logits = self._task_loss(result, labels)
        else:
            logits = result.to(self._policy.parameter_dtype)
            loss = softmax_cross_entropy(logits, labels, self._smoothing)
        return loss if self._accumulate == 1 else loss / self._accumulate, logits

    def _inspected_objective(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Any]:
        # A function of its own: torch.compile keeps programs by function, and these contain the recording hooks.
        return self._objective(images, labels)

    def _cast(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function within autocast: its convolutions and dense layers use the compute dtype.

        Autocast is outside of compiled programs: torch's cache keeps no traced program that contains it (pytorch issue
        191106).
        """
        policy = self._policy

        def cast(*arguments: torch.Tensor, **options: Any) -> Any:
            if policy.compute_dtype == policy.parameter_dtype:
                return function(*arguments, **options)
            with torch.autocast(self._device.type, policy.compute_dtype):
                return function(*arguments, **options)

        return cast


def _initial_value(name: str, buffer: torch.Tensor) -> torch.Tensor:
    """Return a buffer's value before training: the factory's value, but 0 for batch norm's count of batches."""
    return torch.zeros_like(buffer) if name.endswith("num_batches_tracked") else buffer.clone()
