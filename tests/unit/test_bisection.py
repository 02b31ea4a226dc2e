"""Both searches on every threshold of a range, and on what they must not take for granted."""

from collections.abc import Callable
from math import ceil, log, log2

import pytest

from compare.execution.bisection import Bracket, find_largest, find_smallest


class Asked:
    """A yes-or-no question that remembers what it was asked."""

    def __init__(self, fits: Callable[[int], bool]) -> None:
        self._fits = fits
        self.values: list[int] = []

    def __call__(self, value: int) -> bool:
        self.values.append(value)
        return self._fits(value)


@pytest.mark.parametrize(
    ("first", "most"),
    [(2, most) for most in (2, 3, 4, 5, 63, 64, 65, 1000, 4096, 4097)]
    + [(3, 3), (3, 4), (33, 64), (64, 64), (50, 1000), (512, 4096), (4097, 4097)],
)
def test_the_largest_is_found_for_every_capacity(first: int, most: int) -> None:
    for capacity in range(1, most + 2):
        question = Asked(lambda value, capacity=capacity: value <= capacity)
        found = find_largest(question, least=2, most=most, first=first)
        if capacity < 2:
            assert found == Bracket(None, 2)
        elif capacity >= most:
            assert found == Bracket(most, None)
            assert not found.exact
        else:
            _check_bracket(found, capacity)
        assert len(set(question.values)) == len(question.values), "asked twice"
        assert all(2 <= value <= most for value in question.values)
        assert len(question.values) <= ceil(abs(log2(max(capacity, 2) / first))) + 9


def _check_bracket(found: Bracket, capacity: int) -> None:
    assert found.fits is not None
    assert found.fails is not None
    assert found.fits <= capacity < found.fails
    assert found.exact == (found.fails - found.fits == 1)
    assert found.exact or found.fails - found.fits < 0.01 * found.fits
    if capacity < 100:
        assert (found.fits, found.exact) == (capacity, True)


@pytest.mark.parametrize(
    ("first", "values"),
    [
        (2, [2, 4, 8, 16, 32, 24, 20, 22, 21]),
        (12, [12, 24, 18, 21, 22]),
        (100, [100, 50, 25, 12, 18, 21, 23, 22]),
    ],
)
def test_the_largest_doubles_or_halves_from_the_first_and_then_bisects(first: int, values: list[int]) -> None:
    question = Asked(lambda value: value <= 21)
    assert find_largest(question, least=2, most=10**6, first=first) == Bracket(21, 22)
    assert question.values == values


@pytest.mark.parametrize("capacity", [2**20, 33_554_431, 10**9 + 7, 2**31 - 2])
def test_the_largest_of_many_takes_few_questions(capacity: int) -> None:
    question = Asked(lambda value: value <= capacity)
    found = find_largest(question, least=2, most=2**31 - 1, first=2)
    _check_bracket(found, capacity)
    assert len(question.values) <= log2(capacity) + 8


@pytest.mark.parametrize(("least", "most", "step"), [(1, 400, 1), (10, 5000, 10), (7, 9, 1), (100, 101, 1)])
def test_the_smallest_is_found_for_every_need(least: int, most: int, step: int) -> None:
    for need in range(least + 1, most + 2):
        question = Asked(lambda value, need=need: value >= need)
        found = find_smallest(question, least=least, most=most, step=step)
        if need > most:
            assert found == Bracket(None, most)
            assert question.values == [most]
            continue
        assert found.fits is not None
        assert found.fails is not None
        assert found.fails < need <= found.fits
        assert found.fits - found.fails <= max(step, 0.02 * found.fails)
        assert len(set(question.values)) == len(question.values), "asked twice"
        assert all(least < value <= most for value in question.values)


@pytest.mark.parametrize("need", [2**20 + 1, 3 * 2**20, 600 * 2**20, 100 * 2**30, 140 * 2**30])
def test_the_smallest_memory_of_a_large_gpu_takes_few_questions(need: int) -> None:
    most, step = 140 * 2**30, 2**20
    question = Asked(lambda value: value >= need)
    found = find_smallest(question, least=step, most=most, step=step)
    assert found.fits is not None
    assert found.fails is not None
    assert found.fails < need <= found.fits
    assert found.fits - found.fails <= max(step, 0.02 * found.fails)
    assert len(question.values) <= log2(log(most / step) / log(1.02)) + 2


def test_where_more_fits_better_both_end_at_a_yes_beside_a_no() -> None:
    def fits(value: int) -> bool:
        return value <= 40 or value in (48, 60)

    question = Asked(fits)
    found = find_largest(question, least=2, most=1000, first=2)
    assert found.exact
    assert found.fits is not None
    assert fits(found.fits)
    assert found.fails in question.values
    question = Asked(lambda value: not fits(value))
    found = find_smallest(question, least=1, most=1000, step=1)
    assert found.fits in question.values
    assert found.fails in question.values
    assert found.fits is not None
    assert not fits(found.fits)


def test_a_failure_passes_through() -> None:
    def fails(_: int) -> bool:
        raise ValueError("scripted")

    with pytest.raises(ValueError, match="scripted"):
        find_largest(fails, least=2, most=8, first=4)
    with pytest.raises(ValueError, match="scripted"):
        find_smallest(fails, least=2, most=8, step=1)
