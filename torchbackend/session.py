"""One model in training with PyTorch: a step over the model's own state, dispatched as the knobs say."""

from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from compare import workloads
from compare.interface import Array, Arrays, Batch, Memory, Refused, RunSpec, State
from torchbackend import activations, layout, memory, models, optim, precision, tuning
from torchbackend.losses import softmax_cross_entropy

_KEPT_LOSSES = 4096


class TorchSession:
    """`compare.interface.Session` in PyTorch."""

    def __init__(self, spec: RunSpec) -> None:
        workload = workloads.get(spec.workload)
        self._spec = spec
        self._policy = precision.policy(spec.precision, spec.device)
        self._device = _device(spec.device)
        torch.backends.cudnn.benchmark = bool(spec.knobs["kernel-search"])
        layout_order = torch.channels_last if spec.knobs["channels-last"] else torch.contiguous_format
        with self._policy.scope():
            model = models.build(workload.model.resized(spec.image_size), self._policy)
            self._signature = layout.signature(model)
            self._model = model.to(self._device, memory_format=layout_order)  # type: ignore[call-overload]
        self._update = optim.build(
            workload.optimizer,
            self._model,
            fused=bool(spec.knobs["fused-optimizer"]),
            capturable=bool(spec.knobs["graph-capture"]),
        )
        self._scaling = precision.loss_scale(self._policy, self._device.type)
        self._forward = tuning.compiled(self._objective, spec.knobs)
        self._inspected_forward = tuning.compiled(self._inspected_objective, spec.knobs)
        self._evaluate = tuning.compiled(self._eval_logits, spec.knobs)
        self._several: tuning.Several | None = None
        self._pool: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._position = 0
        self._losses: deque[torch.Tensor] = deque(maxlen=_KEPT_LOSSES)
        self._steps = 0

    @property
    def steps_per_dispatch(self) -> int:
        """See `compare.interface.Session`."""
        return self._spec.knobs["steps-per-dispatch"]

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.interface.Session`."""
        return self._signature

    def assign(self, arrays: Arrays) -> None:
        """See `compare.interface.Session`."""
        layout.assign(self._model, arrays)
        # In place, because a captured graph holds these very tensors; zero is what a fresh optimizer starts from.
        for state in self._update.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
        if self._policy.loss_scaling:
            fresh = precision.loss_scale(self._policy, self._device.type)
            self._scaling.load_state_dict(fresh.state_dict())
        self._steps = 0

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.interface.Session`."""
        self._pool = [self._placed(batch) for batch in batches]
        if self._spec.knobs["graph-capture"]:
            images, labels = (torch.stack(tensors) for tensors in zip(*self._pool, strict=True))
            if self._several is None or self._several.images.shape != images.shape:
                ...
        self._position = 0
        self._losses.clear()
