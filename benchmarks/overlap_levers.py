"""What JAX's devices compute while they exchange the gradients of batch norm's moments, for `benchmarks.step_time
--lever` to try: torch's knob `overlap-exchanges`.

XLA, left to itself, computes most gradients of weights when most exchanges are over. So each batch norm gives the next
layer a ticket, a zero that nobody reads: its gradient is a zero, too, but comes with that of the layer's kernel and not
before, and is added to the gradient of the batch norm's input, which therefore waits for it. The exchange itself does
not. The next layer is the one of as many channels that is called next; any other would do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxbackend import exchange, layers


@dataclass
class _Tickets:
    """The last batch norm's, until a layer takes it, and how many channels that has."""

    waiting: tuple[jax.Array, int] | None = None


def weight_gradients_between() -> None:
    """Have them computed between the start of an exchange and its end, in `pmap`: `sharded` has layers of their own."""
    tickets, moments, promoted = _Tickets(), exchange.moments, layers._promoted

    def held(wide: jax.Array, own: Callable[[jax.Array], Any], over: str | None) -> tuple[jax.Array, jax.Array]:
        if over is None or jax.lax.axis_size(over) == 1:
            return moments(wide, own, over)
        found: Any = _held(wide)
        wide, tickets.waiting = found[0], (found[1], wide.shape[-1])
        return moments(wide, own, over)

    def before_ticket(arrays: Any, /, *, dtype: Any = None, **more: Any) -> Any:
        inputs, kernel, bias = promoted(arrays, dtype=dtype, **more)
        if tickets.waiting is not None and tickets.waiting[1] == inputs.shape[-1]:
            kernel, tickets.waiting = _before(kernel, tickets.waiting[0]), None
        return inputs, kernel, bias

    exchange.moments, layers._promoted = held, before_ticket


@jax.custom_vjp
def _held(wide: jax.Array) -> tuple[jax.Array, jax.Array]:
    return wide, jnp.zeros((), wide.dtype)


_held.defvjp(lambda wide: (_held(wide), None), lambda _, gradients: (gradients[0] + gradients[1],))


@jax.custom_vjp
def _before(kernel: jax.Array, ticket: jax.Array) -> jax.Array:
    del ticket
    return kernel


def _together(zero: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    of_kernel, of_ticket = jax.lax.optimization_barrier((gradient, zero))
    return of_kernel, of_ticket


_before.defvjp(lambda kernel, ticket: (kernel, jnp.zeros_like(ticket)), _together)
