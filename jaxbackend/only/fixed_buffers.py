"""Keep the images and answers of requests at the same addresses, for the knob `graph-capture`.

XLA replays a captured graph as it is while all addresses stay. One new address, of an image or of an answer, makes it
update every kernel of the graph before it starts (openxla.org/xla, command buffers).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from compare.base.requests import KEPT


class Buffers(NamedTuple):
    """What a program keeps from request to request. Each call donates it to the next.

    Attributes:
        answers: logits of the last requests, [KEPT, N, ...].
        places: int32 [2]: the next request's place in the images and in `answers`.
        limits: int32 [2]: the numbers of fed batches and of kept answers, after which places begin again at 0.
    """

    answers: jax.Array
    places: jax.Array
    limits: jax.Array


def make(answer: jax.ShapeDtypeStruct, fed: int, device: Any) -> Buffers:
    """Return empty buffers on the device for answers of that shape [N, ...] and `fed` batches."""
    arrays = np.zeros((KEPT, *answer.shape), answer.dtype), np.zeros(2, np.int32), np.array([fed, KEPT], np.int32)
    return Buffers(*jax.device_put(arrays, device))


def answer_next(answer: Callable[..., jax.Array]) -> Callable[..., Buffers]:
    """Return `step(buffers, variables, pool)`, which answers the next batch of the pool [B, N, H, W, C]."""

    def step(buffers: Buffers, variables: Any, pool: jax.Array) -> Buffers:
        image, slot = buffers.places
        logits = answer(variables, jax.lax.dynamic_index_in_dim(pool, image, keepdims=False))
        answers = jax.lax.dynamic_update_index_in_dim(buffers.answers, logits, slot, 0)
        return Buffers(answers, (buffers.places + 1) % buffers.limits, buffers.limits)

    return step
