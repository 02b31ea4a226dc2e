"""Batches that lie on the device: `input=resident`."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from compare.base.interface import Batch, KnobValues
from jaxbackend import parallel, precision
from jaxbackend.step import TrainingStep, TrainState


class Resident:
    """Places every batch on the device when it is fed, and trains on them in turn."""

    name = "resident"

    def __init__(
        self, step: TrainingStep, policy: precision.Policy, strategy: parallel.Strategy, knobs: KnobValues
    ) -> None:
        self._step, self._policy, self._strategy = step, policy, strategy
        self._per_dispatch = int(knobs["steps-per-dispatch"])
        self._stacked: tuple[jax.Array, jax.Array] | None = None
        self._pool: list[tuple[jax.Array, jax.Array]] = []
        self._position = 0

    @property
    def dtype(self) -> Any:
        """The dtype in which images come to the device."""
        return self.first()[0].dtype

    def place(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return a batch on the device, as a step takes it."""
        return self._strategy.batch(np.asarray(batch.values(), self._policy.parameter_dtype), batch.labels)

    def first(self) -> tuple[jax.Array, jax.Array]:
        """Return the first batch on the device."""
        return self._batch(0)

    def dispatch_program(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the program of a whole dispatch, and its arguments after the state, at the first batch."""
        if self._step.several is None or self._stacked is None:
            return self._step.program, self.first()
        return self._step.several, (*self._stacked, np.int32(0))

    def feed(self, batches: Sequence[Batch]) -> None:
        """Place batches. The next step trains on the first."""
        self._pool, self._stacked = [], None
        if self._step.several is None:
            self._pool = [self.place(batch) for batch in batches]
        else:
            images = np.stack([batch.values() for batch in batches], dtype=self._policy.parameter_dtype)
            self._stacked = self._strategy.batches(images, np.stack([batch.labels for batch in batches]))
        self._position = 0

    def dispatch(self, state: TrainState, steps: int) -> tuple[int, TrainState, jax.Array]:
        """Train with one dispatch of at most `steps`. Return how many steps it took, the new state and their losses."""
        count = self._per_dispatch
        if self._step.several is not None and self._stacked is not None and steps >= count:
            state, losses = self._step.several(state, *self._stacked, np.int32(self._position))
        else:
            count = 1
            state, losses = self._step(state, *self._batch(self._position))
        self._position = (self._position + count) % len(self._pool if self._stacked is None else self._stacked[0])
        return count, state, losses

    def wait(self, state: TrainState) -> None:
        """Wait until the device has done all dispatched work."""
        jax.block_until_ready(state)

    def _batch(self, index: int) -> tuple[jax.Array, jax.Array]:
        if self._stacked is not None:
            return self._stacked[0][index], self._stacked[1][index]
        return self._pool[index]
