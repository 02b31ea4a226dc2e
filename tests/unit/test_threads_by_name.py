"""Figures of tensors by several threads: the same, in the same order, and failing at the same tensor."""

import threading

import numpy as np
import pytest

from compare.agreement import measures
from compare.base.interface import Arrays

NAMES = ("third", "first", "second")
SMALL: Arrays = {name: np.zeros(1) for name in NAMES}
LARGE: Arrays = SMALL | {"large": np.broadcast_to(np.zeros(1), 2**24)}


def test_figures_come_by_name_in_the_names_order() -> None:
    assert list(measures.measure_by_name(NAMES, len, SMALL).items()) == [("third", 5), ("first", 5), ("second", 6)]


def test_that_one_takes_longer_changes_nothing() -> None:
    last_is_done = threading.Event()

    def figure(name: str) -> int:
        if name == NAMES[-1]:
            last_is_done.set()
        assert last_is_done.wait(60)
        return len(name)

    assert list(measures.measure_by_name(NAMES, figure, LARGE)) == list(NAMES)


def test_tensors_of_a_large_record_are_at_work_at_the_same_time() -> None:
    meeting = threading.Barrier(len(NAMES), timeout=60)
    measures.measure_by_name(NAMES, lambda _: meeting.wait(), LARGE)


def test_those_of_a_small_one_are_not_for_they_would_wait_for_each_other() -> None:
    meeting = threading.Barrier(len(NAMES), timeout=0.2)
    with pytest.raises(threading.BrokenBarrierError):
        measures.measure_by_name(NAMES, lambda _: meeting.wait(), SMALL)


@pytest.mark.parametrize("record", [SMALL, LARGE])
def test_of_several_failures_the_first_in_order_is_raised(record: Arrays) -> None:
    second_failed = threading.Event()

    def figure(name: str) -> None:
        if name == "second":
            second_failed.set()
        elif record is LARGE:
            assert second_failed.wait(60)
        raise ValueError(name)

    with pytest.raises(ValueError, match="third"):
        measures.measure_by_name(NAMES, figure, record)
