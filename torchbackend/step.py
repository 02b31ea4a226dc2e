"""The training step: forward, loss, backward and update, over the state that model and optimizer hold."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from torchbackend import activations, precision, tuning
from torchbackend.losses import softmax_cross_entropy


class TrainingStep:
    """One model's training step and evaluation, turned into programs as the knobs say."""

    def __init__(
        self,
        model: nn.Module,
        update: torch.optim.Optimizer,
        policy: precision.Policy,
        device: torch.device,
        knobs: Mapping[str, Any],
        *,
        smoothing: float = 0.0,
    ) -> None:
        self.model, self.update, self._policy, self._device = model, update, policy, device
        self._smoothing = smoothing
        self.scaling = precision.loss_scale(policy, device.type)
        self._forward = tuning.compiled(self._objective, knobs)
        self._inspected_forward = tuning.compiled(self._inspected_objective, knobs)
        self._evaluate = tuning.compiled(self._eval_logits, knobs)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Train one step on images [N, C, H, W], labels [N]; return the loss."""
        self.update.zero_grad()
        loss, _ = self._forward(images, labels)
        self.scaling.scale(loss).backward()
        self.scaling.step(self.update)
        self.scaling.update()
        return loss.detach()

    def inspected(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """Train the same step and return its internals: activations, logits, loss, gradients of the unscaled loss."""
        self.update.zero_grad()
        with activations.recorded(self.model) as outputs:
            loss, logits = self._inspected_forward(images, labels)
        self.scaling.scale(loss).backward()
        self.scaling.unscale_(self.update)
        gradients = {id(p): p.grad.clone() for p in self.model.parameters() if p.grad is not None}
        self.scaling.step(self.update)
        self.scaling.update()
        return {"activation": outputs, "logits": logits.detach(), "loss": loss.detach(), "gradient": gradients}

    def evaluate(self, images: torch.Tensor) -> torch.Tensor:
        """Return evaluation-mode logits [N, classes] in the parameters' dtype."""
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
            with torch.no_grad(), activations.recorded(self.model) as outputs:
                self._eval_logits(images)
            return outputs
        finally:
            self.model.train()

    def reset(self) -> None:
        """Bring optimizer and loss scale to their start, in place, because a captured graph holds these tensors."""
        for value in self._moments():
            value.zero_()
        if self._policy.loss_scale is not None:
            self.scaling.load_state_dict(precision.loss_scale(self._policy, self._device.type).state_dict())

    def snapshot(self) -> Callable[[], None]:
        """Return a function that puts the present training state back in place."""
        tensors = [*self.model.state_dict().values(), *self._moments()]
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

    def _moments(self) -> list[torch.Tensor]:
        states = self.update.state.values()
        return [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]

    def _objective(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with self._policy.autocast(self._device.type):
            logits = self.model(images).to(self._policy.parameter_dtype)
            return softmax_cross_entropy(logits, labels, self._smoothing), logits

    def _inspected_objective(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # A function of its own: torch.compile keeps programs by function, and this one has the recording hooks in it.
        return self._objective(images, labels)

    def _eval_logits(self, images: torch.Tensor) -> torch.Tensor:
        with self._policy.autocast(self._device.type):
            return self.model(images)
