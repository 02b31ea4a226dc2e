"""What devices compute while they exchange the gradients of batch norm's moments: the knob `overlap-exchanges`.

XLA orders a program by what needs what and, left to itself, computes most gradients of weights when most exchanges are
over. So each batch norm leaves a ticket, a zero that nobody reads, to the layer of as many channels that is called
next: its gradient is a zero, too, but comes with that of the layer's kernel and not before, and is added to the
gradient of the batch norm's input, which therefore waits for it. The exchange does not. Any layer that is called later
would do, for none computes what comes before. Two whose outputs are added leave theirs to the same one.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import cast

import jax
import jax.numpy as jnp

Waiting = Mapping[int, tuple[jax.Array, ...]]
"""Tickets that no layer has taken yet, each [1], of each device, by the number of channels."""


@dataclass
class _Tickets:
    waiting: Waiting = field(default_factory=dict[int, tuple[jax.Array, ...]])
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
    channels, (wide, ticket) = wide.shape[-1], cast("tuple[jax.Array, jax.Array]", _held(wide))
    tickets.waiting = {**tickets.waiting, channels: (*tickets.waiting.get(channels, ()), ticket)}
    return wide


def before_tickets(kernel: jax.Array, channels: int) -> jax.Array:
    """Return the kernel of a layer of so many channels, with whose gradient come those of the tickets that wait."""
    tickets = _tickets.get()
    if tickets is None or channels not in tickets.waiting:
        return kernel
    taken = tickets.waiting[channels]
    tickets.waiting = {others: waiting for others, waiting in tickets.waiting.items() if others != channels}
    tickets.taken += len(taken)
    return _before(kernel, taken)


def removed() -> Waiting:
    """Return the tickets that wait and have them wait no more: a layer's program is given them."""
    tickets = _tickets.get()
    if tickets is None:
        return {}
    waiting, tickets.waiting = tickets.waiting, {}
    return waiting


def put(waiting: Waiting) -> None:
    """Have what was removed wait within a layer's program, or behind it."""
    tickets = _tickets.get()
    if tickets is not None:
        tickets.waiting = waiting


@jax.custom_vjp
def _held(wide: jax.Array) -> tuple[jax.Array, jax.Array]:
    return wide, jnp.zeros(1, wide.dtype)


_held.defvjp(lambda wide: (_held(wide), None), lambda _, gradients: (gradients[0] + gradients[1],))


@jax.custom_vjp
def _before(kernel: jax.Array, waiting: tuple[jax.Array, ...]) -> jax.Array:
    del waiting
    return kernel


def _together(zeros: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    of_kernel, of_tickets = jax.lax.optimization_barrier((gradient, zeros))
    return of_kernel, of_tickets


_before.defvjp(lambda kernel, waiting: (kernel, jax.tree.map(jnp.zeros_like, waiting)), _together)
