"""Batches that lie on the device: `input=resident`."""

from collections.abc import Sequence

import torch

from compare.base.interface import Batch, KnobValues
from torchbackend import pixels, precision
from torchbackend.only import model_inputs
from torchbackend.only.captured_steps import CapturedSteps
from torchbackend.only.memory_order import stack_batches
from torchbackend.step import TrainingStep


class Resident:
    """Places every batch on the device when it is fed, and trains on them in turn."""

    name = "resident"

    def __init__(self, step: TrainingStep, policy: precision.Policy, device: torch.device, knobs: KnobValues) -> None:
        self._step, self._policy, self._device, self._knobs = step, policy, device, knobs
        self._per_dispatch = int(knobs["steps-per-dispatch"])
        self._several: CapturedSteps | None = None
        self._stacked: tuple[torch.Tensor, torch.Tensor] | None = None
        self._pool: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._position = 0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which images come to the device."""
        return self._pool[0][0].dtype

    @property
    def captured(self) -> bool:
        """Whether a graph has been captured."""
        return self._several is not None

    def place(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a batch on the device, as a step takes it."""
        images = torch.from_numpy(batch.values()).to(self._device, self._policy.parameter_dtype)
        labels = model_inputs.widen_targets(torch.from_numpy(batch.labels).to(self._device), self._policy)
        return pixels.values(images, None, channels_last=bool(self._knobs["channels-last"])), labels

    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first batch on the device."""
        return self._pool[0]

    def feed(self, batches: Sequence[Batch]) -> None:
        """Place batches. The next step trains on the first."""
        self._position = 0
        if self._several is not None and self._several.labels.shape == (len(batches), *batches[0].labels.shape):
            # One at a time, into the graph's own tensors: a second copy of all would double the memory.
            for tensors, batch in zip(self._pool, batches, strict=True):
                for tensor, new in zip(tensors, self.place(batch), strict=True):
                    tensor.copy_(new)
            return
        self._several, self._stacked, self._pool = None, None, []  # frees their memory first
        self._pool = [self.place(batch) for batch in batches]
        if self._knobs["graph-capture"]:
            images, labels = (stack_batches(tensors) for tensors in zip(*self._pool, strict=True))
            self._stacked = images, labels
            self._pool = list(zip(images.unbind(), labels.unbind(), strict=True))

    def dispatch(self, steps: int) -> tuple[int, torch.Tensor]:
        """Train with one dispatch of at most `steps`. Return how many steps it took and their losses."""
        several = self._find_graph(steps)
        count = 1 if several is None else self._per_dispatch
        losses = self._step(*self._pool[self._position]) if several is None else several(self._position)
        self._position = (self._position + count) % len(self._pool)
        return count, losses

    def wait(self) -> None:
        """Wait until the device has done all dispatched work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _find_graph(self, steps: int) -> CapturedSteps | None:
        """Return the graph if it can take the next steps. `steps` is the number still to take."""
        count = self._per_dispatch
        if self._stacked is None or steps < count:
            return None
        if self._several is None:
            self._several = CapturedSteps(self._step, self._step.snapshot, *self._stacked, count)
        return self._several if self._several.can_start(self._position) else None
