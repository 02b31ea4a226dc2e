"""What devices compute while they exchange the gradients of batch norm's moments: the knob `overlap-exchanges`.

XLA orders a program by what needs what and, left to itself, computes most gradients of weights when most exchanges are
over. So each batch norm leaves a ticket, a zero that nobody reads, to the layer of as many channels that is called
next: its gradient is a zero, too, but comes with that of the layer's kernel and not before, and is added to the
gradient of the batch norm's input, which therefore waits for it. The exchange does not. Any layer that is called later
would do, for none computes what comes before.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp


@dataclass
class _Tickets:
    """The last batch norm's, until a layer takes it: [1], of each device; its channels; and how many were taken."""

    waiting: jax.Array | None = None
    channels: int = 0
    taken: int = 0


_tickets: ContextVar[_Tickets | None] = ContextVar("tickets", default=None)


@contextmanager
def beside_exchanges(*, wanted: bool) -> Generator[Callable[[], int]]:
    """Have batch norms leave tickets, if wanted, for one forward pass. Yields what tells how many were taken."""
    tickets = _Tickets()
    before = _tickets.set(tickets if wanted else None)
    try:
        yield lambda: tickets.taken
    finally:
        _tickets.reset(before)


def held(wide: jax.Array) -> jax.Array:
    """Return what a batch norm takes its moments of [N, ..., C]; its gradient waits for the next layer's kernel's."""
    tickets = _tickets.get()
    if tickets is None:
        return wide
    wide, tickets.waiting = cast("tuple[jax.Array, jax.Array]", _held(wide))
    tickets.channels = wide.shape[-1]
    return wide


def before_ticket(kernel: jax.Array, channels: int) -> jax.Array:
    """Return the kernel of a layer of so many channels, with whose gradient comes that of the ticket that waits."""
    tickets = _tickets.get()
    if tickets is None or tickets.waiting is None or tickets.channels != channels:
        return kernel
    ticket, tickets.waiting, tickets.taken = tickets.waiting, None, tickets.taken + 1
    return _before(kernel, ticket)


def removed() -> jax.Array | None:
    """Return the ticket that waits, if one does, and have it wait no more: a layer's program is told of it."""
    tickets = _tickets.get()
    if tickets is None:
        return None
    ticket, tickets.waiting = tickets.waiting, None
    return ticket


def put(ticket: jax.Array | None) -> None:
    """Have what was removed wait within a layer's program, or behind it."""
    tickets = _tickets.get()
    if tickets is not None:
        tickets.waiting = ticket


@jax.custom_vjp
def _held(wide: jax.Array) -> tuple[jax.Array, jax.Array]:
    return wide, jnp.zeros(1, wide.dtype)


_held.defvjp(lambda wide: (_held(wide), None), lambda _, gradients: (gradients[0] + gradients[1],))


@jax.custom_vjp
def _before(kernel: jax.Array, ticket: jax.Array) -> jax.Array:
    del ticket
    return kernel


def _together(zero: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    of_kernel, of_ticket = jax.lax.optimization_barrier((gradient, zero))
    return of_kernel, of_ticket


_before.defvjp(lambda kernel, ticket: (kernel, jnp.zeros_like(ticket)), _together)
