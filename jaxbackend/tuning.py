"""How a training step is turned into a program: the knobs' mechanisms."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Step = Callable[..., tuple[Any, Any]]


def compiled(step: Step, knobs: Mapping[str, Any]) -> Step:
    """Return `step(state, ...)` as one XLA program, its state donated if the knobs say so."""
    if not knobs["compile"]:
        return step
    return jax.jit(step, donate_argnums=(0,) if knobs["donation"] else ())


def several(step: Step, knobs: Mapping[str, Any]) -> Step | None:
    """Return a program of `steps-per-dispatch` steps over batches [P, N, ...], starting at batch `start`.

    `several(state, images, labels, start)` returns the state and the losses. None where the knob is 1.
    """
    count = knobs["steps-per-dispatch"]
    if count == 1:
        return None

    def scan(state: Any, images: jax.Array, labels: jax.Array, start: jax.Array) -> tuple[Any, jax.Array]:
        def body(state: Any, index: jax.Array) -> tuple[Any, jax.Array]:
            batch = (start + index) % len(images)
            return step(state, images[batch], labels[batch])

        return jax.lax.scan(body, state, jnp.arange(count, dtype=jnp.int32))

    return compiled(scan, knobs)
