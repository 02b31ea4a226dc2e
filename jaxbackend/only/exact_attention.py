"""Attention with its softmax in the precision of its inputs, while float64 is the reference.

`jax.nn.dot_product_attention` computes its softmax in float32, whatever its inputs are, and nnx's attention calls it.
Only a certificate runs in float64, so nothing that is timed changes.
"""

import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

NOTE = (
    "jax.nn.dot_product_attention computes its softmax in float32, which is off by 1e-7: the certificate computes it "
    "in float64"
)
_calls: list[None] | None = None


def install() -> None:
    """Replace jax's function. It then computes as before, except in float64 and within `watch`."""
    original = jax.nn.dot_product_attention
    if hasattr(original, "is_exact"):
        return

    @functools.wraps(original)
    def attend(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> Any:
        is_plain = not {name for name, given in options.items() if given is not None} - {"scale", "is_causal"}
        if _calls is not None:
            _calls.append(None)
        if not is_plain or (query.dtype != jnp.float64 and _calls is None):
            return original(query, key, value, bias, mask, **options)
        return _attend(query, key, value, bias, mask, options.get("scale"), bool(options.get("is_causal")))

    setattr(attend, "is_exact", True)  # noqa: B010 -- functions have no such attribute by themselves
    jax.nn.dot_product_attention = attend


@contextmanager
def watch() -> Generator[list[None]]:
    """Collect the calls while the context lasts. They use functions that a trace can name."""
    global _calls
    _calls = []
    try:
        yield _calls
    finally:
        _calls = None


def _attend(query: Any, key: Any, value: Any, bias: Any, mask: Any, scale: float | None, is_causal: bool) -> Any:
    groups = query.shape[-2] // key.shape[-2]
    key, value = (jnp.repeat(each, groups, axis=-2) if groups > 1 else each for each in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("...qhd,...khd->...hqk", query, key) * jnp.asarray(scale, query.dtype)
    scores = scores if bias is None else scores + bias
    if is_causal:
        below = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        mask = below if mask is None else mask & below
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(scores), value)
