"""Switch off dropout that a user's model calls as a function, such as `torch.nn.functional.dropout`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

_NAMES = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_calls: dict[str, None] | None = None


def switch_off() -> None:
    """Replace the functions of torch.nn.functional. They then return their input, and attention drops nothing.

    Modules that the user imports later see the replaced functions, whatever way they import them.
    """
    for name in _NAMES:
        if not hasattr(getattr(functional, name), "is_switched_off"):
            setattr(functional, name, _replace(name))
    attention: Any = functional.scaled_dot_product_attention
    if not hasattr(attention, "is_switched_off"):
        functional.scaled_dot_product_attention = _without_dropout(attention)


def record_calls() -> None:
    """Remember which functions are called from now on."""
    global _calls
    _calls = {}


def list_calls() -> tuple[str, ...]:
    """Return the functions that were called with a rate since `record_calls`, and forget them."""
    global _calls
    calls, _calls = tuple(_calls or ()), None
    return calls


def _note(name: str, rate: float) -> None:
    if _calls is not None and rate:
        _calls[f"torch.nn.functional.{name} with p={rate}"] = None


def _replace(name: str) -> Callable[..., torch.Tensor]:
    def pass_on(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        del inplace
        _note(name, p if training else 0.0)
        return input

    setattr(pass_on, "is_switched_off", True)  # noqa: B010 -- functions have no such attribute by themselves
    return pass_on


def _without_dropout(attention: Any) -> Any:
    def attend(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Any:
        _note("scaled_dot_product_attention", dropout_p)
        return attention(query, key, value, attn_mask, 0.0, is_causal, **options)

    setattr(attend, "is_switched_off", True)  # noqa: B010 -- functions have no such attribute by themselves
    return attend
