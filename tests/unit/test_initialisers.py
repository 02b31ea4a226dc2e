"""Initial values of two models: families and scales are told apart, and each difference has a cure."""

from typing import Any

import numpy as np
import pytest

from compare.user_models import initialisers
from compare.user_models.initialisers import compare_initial_values, describe
from compare.user_models.matching import match
from tests.unit.traces import both, convolution, dense

FAN = 36


def draw(family: str, scale: float, shape: tuple[int, ...], seed: int) -> Any:
    """Return values whose variance is `scale` over the fan-in."""
    random, std = np.random.default_rng(seed), (scale / FAN) ** 0.5
    if family == "uniform":
        return random.uniform(-(3**0.5) * std, 3**0.5 * std, shape)
    if family == "normal":
        return random.normal(0, std, shape)
    if family == "truncated_normal":
        values = random.normal(size=4 * int(np.prod(shape)))
        return values[np.abs(values) < 2][: int(np.prod(shape))].reshape(shape) * std / 0.87962566
    return np.full(shape, scale)


@pytest.mark.parametrize("shape", [(3, 3, 4, 32), (256, 512)])
@pytest.mark.parametrize("family", ["uniform", "normal", "truncated_normal", "constant"])
def test_a_family_is_known_from_few_draws(family: str, shape: tuple[int, ...]) -> None:
    found = describe([draw(family, 2.0, shape, seed) for seed in range(3)], FAN)
    assert found.family == family
    assert found.count <= 3 * 2**16
    if family != "constant":
        assert f'variance_scaling(2, "fan_in", "{family}")' in found.flax


def compare(torch: dict[str, Any], jax: dict[str, Any]) -> list[str]:
    """Return the lines for a convolution and a dense layer with kernels of this distribution."""
    matched = match(*both(convolution("c", (3, 3, 4, 8), [""], bias=True), dense("d", (8, 10), ["c"])))
    sides = [
        [
            {
                pair.name: draw(
                    chosen[pair.torch.role][0],
                    chosen[pair.torch.role][1],
                    pair.torch.shape,
                    100 * side + 10 * seed + number,
                )
                for number, pair in enumerate(matched.variables)
            }
            for seed in initialisers.SEEDS
        ]
        for side, chosen in enumerate((torch, jax))
    ]
    return compare_initial_values(matched, *sides)


ZERO = ("constant", 0.0)


def test_equal_distributions_say_nothing() -> None:
    assert compare({"kernel": ("uniform", 1.0), "bias": ZERO}, {"kernel": ("uniform", 1.0), "bias": ZERO}) == []


def test_frameworks_defaults_are_told_apart_with_a_cure() -> None:
    lines = compare({"kernel": ("uniform", 1 / 3), "bias": ("uniform", 1 / 3)}, {"kernel": ("normal", 1), "bias": ZERO})
    kernel = next(line for line in lines if "c.kernel" in line)
    assert "torch uniform, variance 1/3/fan-in; flax normal, variance 1/fan-in" in kernel
    assert 'kernel_init=nn.initializers.variance_scaling(1/3, "fan_in", "uniform")' in kernel
    bias = next(line for line in lines if "c.bias" in line)
    assert "flax constant 0" in bias
    assert "nn.init.constant_(model.c.bias, 0)" in bias


def test_another_scale_of_the_same_family_is_seen() -> None:
    (line,) = compare({"kernel": ("normal", 2.0), "bias": ZERO}, {"kernel": ("normal", 1.0), "bias": ZERO})[:1]
    assert "torch normal, variance 2/fan-in; flax normal, variance 1/fan-in" in line
