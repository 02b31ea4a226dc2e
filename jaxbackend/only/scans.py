"""Several steps one after the other: the knob `steps-per-dispatch`, and scans without the compiler."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from compare.base.interface import KnobValues
from jaxbackend.only.images import Images


def scan_steps(step: Callable[..., Any], knobs: KnobValues) -> Callable[..., Any] | None:
    """Return a scan of `steps-per-dispatch` steps over batches [P, N, ...], not yet compiled.

    `scan(state, images, labels, start)` starts at batch `start` and returns the state and the losses. None where the
    knob is 1.
    """
    count = int(knobs["steps-per-dispatch"])
    if count == 1:
        return None

    def scan(state: Any, images: Images, labels: jax.Array, start: jax.Array) -> tuple[Any, jax.Array]:
        def body(state: Any, index: jax.Array) -> tuple[Any, jax.Array]:
            batch = (start + index) % len(images)
            return step(state, images[batch], labels[batch])

        return jax.lax.scan(body, state, jnp.arange(count, dtype=jnp.int32))

    return scan


def loop(body: Callable[..., Any], carry: Any, parts: tuple[jax.Array, ...]) -> Any:
    """Do the same as `jax.lax.scan`, op by op."""
    outputs: list[Any] = []
    for part in zip(*parts, strict=True):
        carry, output = body(carry, part)
        outputs.append(output)
    return carry, jax.tree.map(lambda *arrays: jnp.stack(arrays), *outputs)
