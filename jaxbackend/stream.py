"""Batches that lie on the host and come to the device while others train: `input=stream`.

Images that are bytes cross as bytes, others in the parameters' dtype. A unit is the batches of one dispatch. The next
unit is put before the present unit's steps are dispatched. `device_put` returns at once, and XLA's copies wait for all
work that was dispatched before them, because that work may still use their memory.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from compare.base.interface import Array, Batch, KnobValues
from jaxbackend import precision
from jaxbackend.only.images import Images, Pixels
from jaxbackend.step import TrainingStep, TrainState

_READING = 2  # units that dispatched steps may still read when the next one is put


class Stream:
    """Trains on batches in turn. At most three units lie on the device."""

    name = "stream"

    def __init__(self, step: TrainingStep, policy: precision.Policy, device: Any, knobs: KnobValues) -> None:
        self._step, self._policy, self._device = step, policy, device
        self._per_dispatch = int(knobs["steps-per-dispatch"])
        self._images: Array
        self._labels: Array
        self._levels: jax.Array | None = None
        self._count = self._position = 0
        self._ahead: tuple[int, tuple[Images, jax.Array]] | None = None
        self._reading: deque[jax.Array] = deque()

    @property
    def dtype(self) -> Any:
        """The dtype in which images come to the device."""
        return self._images.dtype

    def place(self, batch: Batch) -> tuple[Images, jax.Array]:
        """Return a batch on the device, as a step takes it."""
        images = np.asarray(batch.images, self._dtype(batch))
        return self._put(images, batch.labels, self._table(batch))

    def first(self) -> tuple[Images, jax.Array]:
        """Return the first batch on the device."""
        return self._put(self._images[0], self._labels[0], self._levels)

    def dispatch_program(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the program of a whole dispatch, and its arguments after the state, at the first batch."""
        if self._step.several is None:
            return self._step.program, self.first()
        count = self._per_dispatch
        unit = self._put(self._images[:count], self._labels[:count], self._levels)
        return self._step.several, (*unit, np.int32(0))

    def feed(self, batches: Sequence[Batch]) -> None:
        """Take batches of one size. The next step trains on the first.

        Raises:
            ValueError: their bytes have different meanings.
        """
        first, self._count = batches[0], len(batches)
        if any(batch.levels is not first.levels for batch in batches):
            raise ValueError("a stream takes batches of one table of levels")
        # The first batches again at the end, so that every unit is a slice of one array.
        units = [batches[i % len(batches)] for i in range(len(batches) + self._per_dispatch - 1)]
        self._images = np.stack([batch.images for batch in units], dtype=self._dtype(first), casting="same_kind")
        self._labels = np.stack([batch.labels for batch in units])
        self._levels = self._table(first)
        self._position, self._ahead = 0, None

    def dispatch(self, state: TrainState, steps: int) -> tuple[int, TrainState, jax.Array]:
        """Train with one dispatch of at most `steps`. Return how many steps it took, the new state and their losses."""
        count = self._per_dispatch if steps >= self._per_dispatch else 1
        images, labels = self._unit(count)
        if len(self._reading) == _READING:
            self._reading.popleft().block_until_ready()
        self._position = (self._position + count) % self._count
        self._ahead = None  # frees its memory before more is taken
        self._ahead = count, self._unit(count)
        if self._step.several is None or count == 1:
            state, losses = self._step(state, images, labels)
        else:
            state, losses = self._step.several(state, images, labels, np.int32(0))
        self._reading.append(losses)
        return count, state, losses

    def wait(self, state: TrainState) -> None:
        """Wait until the device has done all dispatched work."""
        jax.block_until_ready((state, self._ahead))

    def _unit(self, count: int) -> tuple[Images, jax.Array]:
        """Return the next batches [count, N, ...], or one batch [N, ...]."""
        if self._ahead is not None and self._ahead[0] == count:
            return self._ahead[1]
        part = self._position if count == 1 else slice(self._position, self._position + count)
        return self._put(self._images[part], self._labels[part], self._levels)

    def _put(self, images: Array, labels: Array, levels: jax.Array | None) -> tuple[Images, jax.Array]:
        placed, named = jax.device_put((images, labels), self._device)
        return placed if levels is None else Pixels(placed, levels), named

    def _dtype(self, batch: Batch) -> Any:
        return self._policy.parameter_dtype if batch.levels is None else np.dtype(np.uint8)

    def _table(self, batch: Batch) -> jax.Array | None:
        if batch.levels is None:
            return None
        return jax.device_put(np.asarray(batch.levels, self._policy.parameter_dtype), self._device)
