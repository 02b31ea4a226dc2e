"""Batches that wait on the host and come to the device while others train: `input=stream`.

Images cross as bytes where they are bytes, and in the parameters' dtype elsewhere. A unit is what one dispatch trains
on. The host copies the next unit once the present one's steps are dispatched: it has nothing else to do by then, and
the device has.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from compare.base.interface import Batch
from torchbackend import pixels, precision, tuning
from torchbackend.step import TrainingStep

_SLOTS = 2  # one unit is read while the next one is written


class Stream:
    """Trains on batches in turn, of which two units at most lie on the device, and one more that a graph reads."""

    name = "stream"

    def __init__(
        self, step: TrainingStep, policy: precision.Policy, device: torch.device, knobs: Mapping[str, Any]
    ) -> None:
        self._step, self._policy, self._device, self._knobs = step, policy, device, knobs
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._values = tuning.compiled(pixels.values, knobs)
        self._several: tuning.Several | None = None
        self._batches: Sequence[Batch] = ()
        self._levels: torch.Tensor | None = None
        self._slots: deque[_Slot] = deque()
        self._position = self._ahead = 0  # the first slot holds so many of the next batches

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which images come to the device."""
        return self._crossing(self._batches[0])

    @property
    def captured(self) -> bool:
        """Whether a graph has been captured."""
        return self._several is not None

    def placed(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a batch on the device, as a step takes it."""
        images = torch.from_numpy(batch.images).to(self._device, self._crossing(batch))
        labels = torch.from_numpy(batch.labels).to(self._device, torch.int64)
        return self._values(images, self._table(batch), channels_last=self._knobs["channels-last"]), labels

    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first batch on the device."""
        return self.placed(self._batches[0])

    def feed(self, batches: Sequence[Batch]) -> None:
        """Take batches of one size; the next step trains on the first.

        Raises:
            ValueError: they differ in what their bytes mean.
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
            self._copies.synchronize()  # no copy is under way into memory that is given back here
        self._several, self._levels = None, table
        self._slots = deque(
            _Slot(self._knobs["steps-per-dispatch"], first, self._crossing(first), self._device, self._copies)
            for _ in range(_SLOTS)
        )

    def dispatch(self, steps: int) -> tuple[int, torch.Tensor]:
        """Train with one dispatch, of at most `steps`; return how many it took and their losses."""
        count = self._knobs["steps-per-dispatch"] if steps >= self._knobs["steps-per-dispatch"] else 1
        if self._ahead != count:
            self._fetch(count)
        slot = self._slots[0]
        losses = self._trained(*slot.arrived(count))
        slot.release()
        self._slots.rotate()
        self._position = (self._position + count) % len(self._batches)
        self._fetch(count)
        return count, losses

    def _fetch(self, count: int) -> None:
        """Bring the next batches into the first slot."""
        self._slots[0].fill([self._batches[(self._position + i) % len(self._batches)] for i in range(count)])
        self._ahead = count

    def _trained(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        count = self._knobs["steps-per-dispatch"]
        if not self._knobs["graph-capture"] or len(labels) < count:
            return self._one(images[0], labels[0])
        if self._several is None:
            self._several = tuning.Several(self._one, self._step.snapshot, images.clone(), labels.clone(), count)
        else:
            self._several.refill(images, labels)
        return self._several(0)

    def _one(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        values = self._values(images, self._levels, channels_last=self._knobs["channels-last"])
        return self._step(values, labels.to(torch.int64))

    def _crossing(self, batch: Batch) -> torch.dtype:
        return self._policy.parameter_dtype if batch.levels is None else torch.uint8

    def _table(self, batch: Batch) -> torch.Tensor | None:
        if batch.levels is None:
            return None
        return torch.from_numpy(batch.levels).reshape(-1).to(self._device, self._policy.parameter_dtype)


class _Slot:
    """Room for one unit in pinned memory and on the device, and two events that keep a writer behind the last reader.

    `copied`: the device has what lay in pinned memory, which may be written again. `released`: the device's room has
    been read, and may be written again. On a CPU both rooms are one, and nothing is ever under way.
    """

    def __init__(
        self, count: int, like: Batch, dtype: torch.dtype, device: torch.device, copies: torch.cuda.Stream | None
    ) -> None:
        self._copies = copies
        self._host = tuple(
            torch.empty((count, *array.shape), dtype=kind, pin_memory=copies is not None)
            for array, kind in ((like.images, dtype), (like.labels, torch.int32))
        )
        self._device = self._host
        if copies is not None:
            self._device = tuple(torch.empty_like(room, device=device) for room in self._host)
            self._copied, self._released = torch.cuda.Event(), torch.cuda.Event()
            self._released.record()  # the memory may have been another's, whose work is not done

    def fill(self, batches: Sequence[Batch]) -> None:
        """Copy batches in; return when the host's part is done."""
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

    def arrived(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images [count, N, H, W, C] and labels for work that is dispatched from now on, until `release`."""
        if self._copies is not None:
            torch.cuda.current_stream().wait_event(self._copied)
        images, labels = self._device
        return images[:count], labels[:count]

    def release(self) -> None:
        """Let the slot be filled again once the work dispatched so far is done."""
        if self._copies is not None:
            self._released.record()
