"""What devices compute while they exchange the gradients of batch norm's moments: the knob `overlap-exchanges`.

XLA orders a program by its dependencies. By itself, it computes most gradients of weights when most exchanges are over.
So each batch norm makes a ticket, a zero that no computation reads. The next layer with the same number of channels
takes it. The ticket's gradient is a zero that comes together with the gradient of that layer's kernel. It is added to
the gradient of the batch norm's input, which therefore waits for it, while the exchange does not. Any later layer would
serve, because its backward pass comes earlier. If two batch norms' outputs are added, one layer takes both tickets.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import cast

import jax
import jax.numpy as jnp

Waiting = Mapping[int, tuple[jax.Array, ...]]
"""Tickets that no layer has taken yet, by the number of channels. Each is an array [1] on each device."""


@dataclass
class _Tickets:
    waiting: Waiting = field(default_factory=dict[int, tuple[jax.Array, ...]])
    taken: int = 0


_tickets: ContextVar[_Tickets | None] = ContextVar("tickets", default=None)


@contextmanager
def overlap_exchanges(*, wanted: bool) -> Generator[Callable[[], int]]:
    """Let batch norms make tickets, if wanted, for one forward pass. Yield a function that counts the taken tickets."""
    tickets = _Tickets()
    before = _tickets.set(tickets if wanted else None)
    try:
        yield lambda: tickets.taken
    finally:
        _tickets.reset(before)


def hold(wide: jax.Array) -> jax.Array:
    """Return a batch norm's input [N, ..., C]. Its gradient waits for the gradient of the next layer's kernel."""
    tickets = _tickets.get()
    if tickets is None:
        return wide
    channels, (wide, ticket) = wide.shape[-1], cast("tuple[jax.Array, jax.Array]", _hold(wide))
    tickets.waiting = {**tickets.waiting, channels: (*tickets.waiting.get(channels, ()), ticket)}
    return wide


def take_tickets(kernel: jax.Array, channels: int) -> jax.Array:
    """Return a layer's kernel. Its gradient comes with those of all waiting tickets of so many channels."""
    tickets = _tickets.get()
    if tickets is None or channels not in tickets.waiting:
        return kernel
    taken = tickets.waiting[channels]
    tickets.waiting = {others: waiting for others, waiting in tickets.waiting.items() if others != channels}
    tickets.taken += len(taken)
    return _take(kernel, taken)


def remove_waiting() -> Waiting:
    """Remove and return all waiting tickets, to pass them into or out of a layer's own program."""
    tickets = _tickets.get()
    if tickets is None:
        return {}
    waiting, tickets.waiting = tickets.waiting, {}
    return waiting


def set_waiting(waiting: Waiting) -> None:
    """Let removed tickets wait again, inside a layer's own program or after it."""
    tickets = _tickets.get()
    if tickets is not None:
        tickets.waiting = waiting


@jax.custom_vjp
def _hold(wide: jax.Array) -> tuple[jax.Array, jax.Array]:
    return wide, jnp.zeros(1, wide.dtype)


_hold.defvjp(lambda wide: (_hold(wide), None), lambda _, gradients: (gradients[0] + gradients[1],))


@jax.custom_vjp
def _take(kernel: jax.Array, waiting: tuple[jax.Array, ...]) -> jax.Array:
    del waiting
    return kernel


def _take_backward(zeros: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    of_kernel, of_tickets = jax.lax.optimization_barrier((gradient, zeros))
    return of_kernel, of_tickets


_take.defvjp(lambda kernel, waiting: (kernel, jax.tree.map(jnp.zeros_like, waiting)), _take_backward)
