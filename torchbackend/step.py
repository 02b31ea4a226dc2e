"""The training step: forward, loss, backward and update, over the state that model and optimizer hold."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import nn

from compare.base.process_group import RankInfo
from compare.base.workloads import OptimizerSpec
from torchbackend import activations, optim, parallel, precision, tuning
from torchbackend.losses import softmax_cross_entropy


class TrainingStep:
    """One model's training step and evaluation, turned into programs as the knobs say.

    A step takes its batch in `accumulate` equal micro-batches, one after the other: batch norm sees each alone, their
    mean losses are averaged, and so are their gradients, which then make one update. `layers` are those whose outputs
    are recorded, with their `inputs` if asked (`activations.recorded`), `others` the buffers that do not cross.
    """

    def __init__(
        self,
        model: nn.Module,
        update: torch.optim.Optimizer,
        policy: precision.Policy,
        device: torch.device,
        knobs: Mapping[str, Any],
        place: RankInfo | None,
        *,
        layers: Mapping[str, str],
        others: Mapping[str, torch.Tensor],
        inputs: bool = False,
        rule: OptimizerSpec,
        smoothing: float = 0.0,
        accumulate: int = 1,
    ) -> None:
        self.model, self.update, self._policy, self._device = model, update, policy, device
        self._layers, self._inputs = layers, inputs
        self._copies = place is not None and bool(knobs["compile"])
        self._trained = parallel.wrapped(model, device, place, captured=bool(knobs["graph-capture"]))
        self._rule, self._smoothing, self._accumulate = rule, smoothing, accumulate
        # The steps taken, counted by the steps themselves: what a captured step asks of Python, its graph would repeat
        # forever, and what Python counts says nothing of the graph.
        where = device if knobs["graph-capture"] else optim.rate_device(update)
        self._clock = torch.zeros((), dtype=torch.float64, device=where)
        self._first = [(buffer, _at_first(name, buffer)) for name, buffer in others.items()]
        self.scaling = precision.loss_scale(policy, device.type)
        shared = place is not None
        self._autograd = tuning.autograd(compiled=shared and bool(knobs["compiled-autograd"]), shared=shared)
        self._forward = self._cast(tuning.compiled(self._objective, knobs, shared=shared))
        self._inspected_forward = self._cast(tuning.compiled(self._inspected_objective, knobs, shared=shared))
        self._evaluate = self._cast(self.model)  # nobody times it, and its operations are compiled already

    @property
    def taken(self) -> int:
        """The steps taken since `reset`."""
        return int(self._clock)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train one step on images [N, C, H, W], labels [N] or [N, H, W]; return the loss."""
        self.update.zero_grad()
        shares: list[torch.Tensor] = []
        for part in self._parts(images, labels):
            with self._autograd():
                share, _ = self._forward(*part)
                self.scaling.scale(share).backward()
            shares.append(share.detach())
        self._descend()
        return reduce(torch.add, shares)

    def inspected(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """Train the same step and return its internals: activations, logits, loss, gradients of the unscaled loss."""
        self.update.zero_grad()
        shares, logits, activation = list[torch.Tensor](), list[torch.Tensor](), list[dict[str, torch.Tensor]]()
        for part in self._parts(images, labels):
            recorded = activations.recorded(self.model, self._layers, inputs=self._inputs, copies=self._copies)
            with self._autograd():
                with recorded as outputs:
                    share, found = self._inspected_forward(*part)
                self.scaling.scale(share).backward()
            shares.append(share.detach())
            logits.append(found.detach())
            activation.append(outputs)
        scale = self.scaling.get_scale()
        gradients = {id(p): p.grad / scale for p in self.model.parameters() if p.grad is not None}
        self._descend()
        return {
            "activation": {name: torch.cat([each[name] for each in activation]) for name in activation[0]},
            "logits": torch.cat(logits),
            "loss": reduce(torch.add, shares),
            "gradient": gradients,
        }

    def evaluate(self, images: torch.Tensor) -> torch.Tensor:
        """Return evaluation-mode logits of images [N, C, H, W] in the parameters' dtype, classes on the second axis."""
        self.model.eval()
        try:
            with torch.no_grad():
                return self._evaluate(images).to(self._policy.parameter_dtype)
        finally:
            self.model.train()

    def layer_outputs(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return every layer's output in evaluation mode, outside the compiled programs."""
        self.model.eval()
        try:
            with torch.no_grad(), activations.recorded(self.model, self._layers) as outputs:
                self._cast(self.model)(images)
            return outputs
        finally:
            self.model.train()

    def reset(self) -> None:
        """Bring all that does not cross to its start, in place, because a captured graph holds these tensors."""
        for buffer, first in self._first:
            buffer.copy_(first)
        for value in (*self._moments(), self._clock):
            value.zero_()
        if self._policy.loss_scale is not None:
            self.scaling.load_state_dict(precision.loss_scale(self._policy, self._device.type).state_dict())

    def snapshot(self) -> Callable[[], None]:
        """Return a function that puts the present training state back in place."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *self._moments(), self._clock]
        saved = [(tensor, tensor.clone()) for tensor in tensors]
        scale = self.scaling.state_dict()

        def restore() -> None:
            self.reset()  # moments that appear only after the snapshot
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

    def _objective(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._trained(images).to(self._policy.parameter_dtype)
        loss = softmax_cross_entropy(logits, labels, self._smoothing)
        return loss if self._accumulate == 1 else loss / self._accumulate, logits

    def _inspected_objective(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # A function of its own: torch.compile keeps programs by function, and this one has the recording hooks in it.
        return self._objective(images, labels)

    def _cast(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function in the policy's autocast, which is around a compiled one, not in it.

        A program with autocast in it is traced anew by every process (pytorch issue 191106).
        """

        def cast(*arguments: torch.Tensor) -> Any:
            with self._policy.autocast(self._device.type):
                return function(*arguments)

        return cast


def _at_first(name: str, buffer: torch.Tensor) -> torch.Tensor:
    """Return a buffer's value before training: as the factory made it, but that of what batch norm averages by is 0."""
    return torch.zeros_like(buffer) if name.endswith("num_batches_tracked") else buffer.clone()
