"""Batches that lie on the host and come to the device while others train: `input=stream`.

Images that are bytes cross as bytes, others in the parameters' dtype. A unit is the batches of one dispatch. The host
copies the next unit once it has dispatched the present unit's steps. Then the host is idle and the device is busy.
"""

from collections import deque
from collections.abc import Sequence

import torch

from compare.base.interface import Batch, KnobValues
from torchbackend import pixels, precision, tuning
from torchbackend.only import model_inputs
from torchbackend.only.captured_steps import CapturedSteps
from torchbackend.step import TrainingStep

_SLOTS = 2  # one unit is read while the next one is written


class Stream:
    """Trains on batches in turn. At most two units lie on the device, and one more that a graph reads."""

    name = "stream"

    def __init__(self, step: TrainingStep, policy: precision.Policy, device: torch.device, knobs: KnobValues) -> None:
        self._step, self._policy, self._device, self._knobs = step, policy, device, knobs
        self._per_dispatch = int(knobs["steps-per-dispatch"])
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._values = tuning.compile_step(pixels.values, knobs)
        self._several: CapturedSteps | None = None
        self._batches: Sequence[Batch] = ()
        self._levels: torch.Tensor | None = None
        self._slots: deque[_Slot] = deque()
        self._position = self._ahead = 0  # `_ahead` counts the next batches in the first slot

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which images come to the device."""
        return self._dtype(self._batches[0])

    @property
    def captured(self) -> bool:
        """Whether a graph has been captured."""
        return self._several is not None

    def place(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a batch on the device, as a step takes it."""
        images = torch.from_numpy(batch.images).to(self._device, self._dtype(batch))
        labels = model_inputs.widen_targets(torch.from_numpy(batch.labels).to(self._device), self._policy)
        return self._values(images, self._table(batch), channels_last=bool(self._knobs["channels-last"])), labels

    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first batch on the device."""
        return self.place(self._batches[0])

    def feed(self, batches: Sequence[Batch]) -> None:
        """Take batches of one size. The next step trains on the first.

        Raises:
            ValueError: their bytes have different meanings.
        """
        first, before = batches[0], self._batches[:1]
        if any(batch.levels is not first.levels for batch in batches):
            raise ValueError("a stream takes batches of one table of levels")
        self._batches, self._position, self._ahead = tuple(batches), 0, 0
        table = self._table(first)
        if before and before[0].form == first.form:
            if self._levels is not None and table is not None:
                self._levels.copy_(table)  # in place, where a captured graph reads it
            return
        if self._copies is not None:
            self._copies.synchronize()  # no copy may run into memory that is freed here
        self._several, self._levels = None, table
        self._slots = deque(
            _Slot(self._per_dispatch, first, self._dtype(first), self._device, self._copies) for _ in range(_SLOTS)
        )

    def dispatch(self, steps: int) -> tuple[int, torch.Tensor]:
        """Train with one dispatch of at most `steps`. Return how many steps it took and their losses."""
        count = self._per_dispatch if steps >= self._per_dispatch else 1
        if self._ahead != count:
            self._fetch(count)
        slot = self._slots[0]
        losses = self._train(*slot.receive(count))
        slot.release()
        self._slots.rotate()
        self._position = (self._position + count) % len(self._batches)
        self._fetch(count)
        return count, losses

    def wait(self) -> None:
        """Wait until the device has done all dispatched work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _fetch(self, count: int) -> None:
        """Bring the next batches into the first slot."""
        self._slots[0].fill([self._batches[(self._position + i) % len(self._batches)] for i in range(count)])
        self._ahead = count

    def _train(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        count = self._per_dispatch
        if not self._knobs["graph-capture"] or len(labels) < count:
            return self._train_step(images[0], labels[0])
        if self._several is None:
            self._several = CapturedSteps(self._train_step, self._step.snapshot, images.clone(), labels.clone(), count)
        else:
            self._several.refill(images, labels)
        return self._several(0)

    def _train_step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        values = self._values(images, self._levels, channels_last=bool(self._knobs["channels-last"]))
        return self._step(values, model_inputs.widen_targets(labels, self._policy))

    def _dtype(self, batch: Batch) -> torch.dtype:
        return self._policy.parameter_dtype if batch.levels is None else torch.uint8

    def _table(self, batch: Batch) -> torch.Tensor | None:
        if batch.levels is None:
            return None
        return torch.from_numpy(batch.levels).reshape(-1).to(self._device, self._policy.parameter_dtype)


class _Slot:
    """Room for one unit in pinned memory and on the device.

    Two events keep writers behind readers. After `copied`, pinned memory may be written again. After `released`, the
    device's room may be written again. On a CPU both rooms are the same memory, and copies finish at once.
    """

    def __init__(
        self, count: int, like: Batch, dtype: torch.dtype, device: torch.device, copies: torch.cuda.Stream | None
    ) -> None:
        self._copies = copies
        self._host = tuple(
            torch.empty((count, *array.shape), dtype=kind, pin_memory=copies is not None)
            for array, kind in ((like.images, dtype), (like.labels, torch.from_numpy(like.labels).dtype))
        )
        self._device = self._host
        if copies is not None:
            self._device = tuple(torch.empty_like(room, device=device) for room in self._host)
            self._copied, self._released = torch.cuda.Event(), torch.cuda.Event()
            self._released.record()  # earlier work on this memory may still run

    def fill(self, batches: Sequence[Batch]) -> None:
        """Copy batches in. Return when the host's part is done."""
        count = len(batches)
        if self._copies is not None:
            self._copied.synchronize()
        for index, batch in enumerate(batches):
            for room, array in zip(self._host, (batch.images, batch.labels), strict=True):
                room[index].copy_(torch.from_numpy(array))
        if self._copies is not None:
            with torch.cuda.stream(self._copies):
                self._copies.wait_event(self._released)
                for to, room in zip(self._device, self._host, strict=True):
                    to[:count].copy_(room[:count], non_blocking=True)
                self._copied.record(self._copies)

    def receive(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images [count, N, H, W, C] and labels, for work that is dispatched before `release`."""
        if self._copies is not None:
            torch.cuda.current_stream().wait_event(self._copied)
        images, labels = self._device
        return images[:count], labels[:count]

    def release(self) -> None:
        """Let the slot be filled again after the work dispatched so far."""
        if self._copies is not None:
            self._released.record()
