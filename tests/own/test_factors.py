"""Constant factors between layers, in every form of attention: both sides have the same one, or it is named."""

import pytest

from compare.user_models import diagnosis
from tests.own import jax_pairs, torch_pairs


def advise(torch: str, jax: str) -> list[str]:
    """Return the causes of differences before the layer behind the attention."""
    traces = (
        torch_pairs.traced(torch_pairs.model("attended", kind=torch)),
        jax_pairs.traced(jax_pairs.model("attended", (8, 8, 3), kind=jax)),
    )
    layers = [next(layer for layer in trace.layers if layer.path == "proj") for trace in traces]
    return [advice.cause for advice in diagnosis.advise(*layers)]


@pytest.mark.parametrize("jax", ["linen", "jax", "own"])
@pytest.mark.parametrize("torch", ["fused", "early", "late"])
def test_the_same_factor_is_no_difference_wherever_it_stands(torch: str, jax: str) -> None:
    assert advise(torch, jax) == []


@pytest.mark.parametrize("torch", ["fused", "early", "late"])
def test_another_factor_is_named_with_both_numbers(torch: str) -> None:
    assert advise(torch, "wide") == ["torch multiplies by 0.35355, flax by 0.17678"]
