"""What devices compute while they exchange the gradients of batch norm's moments: the knob `overlap-exchanges`.

Nothing but the gradient of a batch norm's input waits for them. XLA, left to itself, computes most gradients of weights
when most exchanges are over, and keeps until then what they need. So each batch norm gives the next layer a ticket,
a zero that nobody reads: its gradient is a zero, too, but comes with that of the layer's kernel and not before, and is
added to the gradient of the batch norm's input, which therefore waits for it. The exchange itself does not. The next
layer is the one of as many channels that is called next; any other would do, for none computes what comes before.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec


@dataclass
class _Tickets:
    """The last batch norm's, until a layer takes it, with how many channels it has; the layer's; how many were used."""

    waiting: tuple[jax.Array, int] | None = None
    taken: jax.Array | None = None
    count: int = 0


_tickets: ContextVar[_Tickets | None] = ContextVar("tickets", default=None)


@contextmanager
def exchanges(*, wanted: bool) -> Generator[Callable[[], int]]:
    """Have batch norms give tickets, if wanted, while the context lasts: one forward pass. Yields how many are used."""
    tickets = _Tickets()
    before = _tickets.set(tickets if wanted else None)
    try:
        yield lambda: tickets.count
    finally:
        _tickets.reset(before)


def held(wide: jax.Array, over: str | AbstractMesh) -> jax.Array:
    """Return what a batch norm takes its moments of [N, ..., C]; its gradient waits for the next layer's kernel's.

    `over` is the axis of a mapped step, or the mesh over which XLA splits the whole; each device has a ticket.
    """
    tickets = _tickets.get()
    if tickets is None:
        return wide
    count = 1 if isinstance(over, str) else over.size
    parts, ticket = cast("tuple[jax.Array, jax.Array]", _held(wide.reshape(count, -1, *wide.shape[1:]), over))
    tickets.waiting = ticket, wide.shape[-1]
    return parts.reshape(wide.shape)


def by_ticket(
    layer: Callable[[jax.Array], jax.Array], inputs: jax.Array
) -> tuple[Callable[..., jax.Array], tuple[jax.Array, ...]]:
    """Return a layer of [N, ..., C] and of what comes with its inputs: the ticket that waits, if it may be meant."""
    tickets = _tickets.get()
    if tickets is None or tickets.waiting is None or tickets.waiting[1] != inputs.shape[-1]:
        return layer, ()
    ticket, tickets.waiting = tickets.waiting[0], None

    def with_ticket(inputs: jax.Array, ticket: jax.Array) -> jax.Array:
        tickets.taken = ticket
        made = layer(inputs)
        assert tickets.taken is None, "the layer has not asked for its kernel by before_ticket"
        return made

    return with_ticket, (ticket,)


def before_ticket(kernel: jax.Array) -> jax.Array:
    """Return a layer's kernel; the gradient of the layer's ticket comes with its, and not before."""
    tickets = _tickets.get()
    if tickets is None or tickets.taken is None:
        return kernel
    ticket, tickets.taken, tickets.count = tickets.taken, None, tickets.count + 1
    return _before(kernel, ticket)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _held(parts: jax.Array, over: str | AbstractMesh) -> tuple[jax.Array, jax.Array]:
    ticket = jnp.zeros(len(parts), parts.dtype)
    if isinstance(over, AbstractMesh):
        ticket = jax.lax.with_sharding_constraint(ticket, NamedSharding(over, PartitionSpec(*over.axis_names)))
    return parts, ticket


def _released(_over: str | AbstractMesh, _: None, gradients: tuple[jax.Array, jax.Array]) -> tuple[jax.Array]:
    of_parts, of_ticket = gradients
    return (of_parts + jnp.expand_dims(of_ticket, tuple(range(1, of_parts.ndim))),)


_held.defvjp(lambda parts, over: (_held(parts, over), None), _released)


@jax.custom_vjp
def _before(kernel: jax.Array, ticket: jax.Array) -> jax.Array:
    del ticket
    return kernel


def _together(zero: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    of_kernel, of_ticket = jax.lax.optimization_barrier((gradient, zero))
    return of_kernel, of_ticket


_before.defvjp(lambda kernel, ticket: (kernel, jnp.zeros_like(ticket)), _together)
