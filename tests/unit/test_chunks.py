"""What is computed chunk by chunk is what whole arrays give, at chunks' borders too."""

import numpy as np
import pytest

from compare.agreement import measures
from compare.base import chunks
from compare.base.interface import Array
from compare.data import weights

SIZES = [0, 1, chunks.SIZE - 1, chunks.SIZE, chunks.SIZE + 1, 2 * chunks.SIZE + 3]


def drawn(size: int) -> Array:
    return np.random.default_rng(size).normal(size=(size, 1))


@pytest.mark.parametrize("size", SIZES)
def test_every_element_comes_once_and_in_order(size: int) -> None:
    found = list(chunks.iterate_chunks(np.arange(size), -np.arange(size).reshape(1, size)))
    assert [int(each) for chunk, _ in found for each in chunk] == list(range(size))
    for chunk, negative in found:
        np.testing.assert_array_equal(chunk, -negative)
        assert len(chunk) <= chunks.SIZE


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_errors_and_norms_are_those_of_the_whole_array(size: int, dtype: type) -> None:
    reference = drawn(size).astype(dtype)
    value = (reference * 1.001).astype(dtype)
    assert measures.compute_norm(reference) == pytest.approx(
        float(np.linalg.norm(reference.astype(np.float64))), rel=1e-12
    )
    difference = np.linalg.norm(value.astype(np.float64) - reference.astype(np.float64))
    whole = float(difference / np.linalg.norm(reference.astype(np.float64))) if size else 0.0
    assert measures.compute_relative_error(value, reference) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, chunks.SIZE, -1])
def test_what_is_not_finite_is_found_in_every_chunk(value: float, place: int) -> None:
    array = drawn(2 * chunks.SIZE + 3)
    assert measures.is_finite(array)
    array[place] = value
    assert not measures.is_finite(array)


@pytest.mark.parametrize("size", SIZES)
def test_every_element_is_moved_up_or_down_as_the_generator_says(size: int) -> None:
    array, roundoff = drawn(size), 2.0**-8
    moved = weights.perturb(array, roundoff, np.random.default_rng(1))
    bits = np.frombuffer(np.random.default_rng(1).bytes(-(-size // 8)), np.uint8)
    up = np.unpackbits(bits, count=size).astype(bool).reshape(size, 1)
    np.testing.assert_array_equal(moved, np.where(up, array * (1 + roundoff), array * (1 - roundoff)))
    assert size < 100 or 0.4 < up.mean() < 0.6


def test_arrays_of_one_memory_order_are_read_in_it_without_a_copy() -> None:
    array = np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1)
    ((one, other),) = chunks.iterate_chunks(array, 2 * array)
    assert np.shares_memory(one, array)
    assert np.array_equal(2 * one, other)
    ((one, other),) = chunks.iterate_chunks(array, np.ascontiguousarray(array))
    assert np.array_equal(one, other)
