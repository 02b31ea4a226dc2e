"""The order in which a dense layer's inputs are flattened, found in the inputs themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.user_models.flattening import find_channels


def _flattened(count: int, height: int, width: int, *, seed: int = 0, batch: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """The same images flattened from NCHW and from NHWC."""
    images = np.random.default_rng(seed).normal(size=(batch, height, width, count))
    return images.transpose(0, 3, 1, 2).reshape(batch, -1), images.reshape(batch, -1)


@given(st.integers(2, 24), st.integers(1, 6), st.integers(1, 6), st.integers(0, 99), st.booleans())
def test_channels_first_is_found_with_and_without_zeros_and_small_differences(
    count: int, height: int, width: int, seed: int, is_relu: bool
) -> None:
    torch, jax = _flattened(count, height, width, seed=seed, batch=8)
    if is_relu:
        torch, jax = np.maximum(torch, 0), np.maximum(jax, 0)
    jax = jax * (1 + 1e-3 * np.random.default_rng(seed).choice((-1.0, 1.0), jax.shape))
    assert find_channels(torch, jax) == (count if height * width > 1 else None)
    assert find_channels(jax, torch) == (height * width if height * width > 1 else None)
    assert find_channels(jax, jax) is None


def test_almost_only_zeros_are_enough() -> None:
    torch, jax = np.zeros((1, 6 * 35)), np.zeros((1, 35 * 6))
    torch.reshape(6, 35)[4, 33] = jax.reshape(35, 6)[33, 4] = 1.0
    torch.reshape(6, 35)[1, 2] = jax.reshape(35, 6)[2, 1] = 2.0
    assert find_channels(torch, jax) == 6


@pytest.mark.parametrize("features", [1, 2, 3, 7, 97])
def test_what_has_no_two_factors_is_in_the_same_order(features: int) -> None:
    random = np.random.default_rng(1)
    assert find_channels(random.normal(size=(4, features)), random.normal(size=(4, features))) is None


def test_a_layer_before_that_differs_does_not_hide_the_order() -> None:
    torch, jax = _flattened(16, 4, 4)
    noise = np.random.default_rng(2).normal(size=jax.shape)
    assert find_channels(torch, jax + 0.5 * noise) == 16
    assert find_channels(torch, torch + 0.5 * noise) is None


@given(st.integers(0, 200))
def test_unrelated_values_are_left_as_they_are(seed: int) -> None:
    random = np.random.default_rng(seed)
    assert find_channels(random.normal(size=(4, 720)), random.normal(size=(4, 720))) is None


def test_constant_and_absent_values_are_left_as_they_are() -> None:
    assert find_channels(np.ones((2, 12)), np.ones((2, 12))) is None
    assert find_channels(np.zeros((2, 12)), np.zeros((2, 12))) is None
    assert find_channels(np.full((2, 12), np.nan), np.ones((2, 12))) is None


def test_other_shapes_are_an_error() -> None:
    with pytest.raises(ValueError, match="the same"):
        find_channels(np.ones((2, 12)), np.ones((2, 11)))
