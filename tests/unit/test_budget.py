"""The budget of a search, on a made-up clock."""

import pytest

from compare.studies import budget
from compare.studies.budget import Budget


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(budget, "monotonic", clock)
    return clock


def begin(seconds: float, backends: int = 1) -> Budget:
    begun = Budget(seconds, backends)
    begun.begin_backend()
    return begun


def test_trials_leave_the_time_of_a_certificate(clock: Clock):
    search = begin(100.0)
    clock.now += 20.0
    search.note_certificate(20.0)
    assert search.left - search.trial_seconds > 20.0
    search.note_trial(10.0, 2)
    most = search.count_tunings()
    assert most >= 2
    clock.now += most * 5.0
    assert search.count_tunings() < 2
    assert search.left >= 20.0


def test_a_certificate_foretells_the_first_trial(clock: Clock):
    search = begin(100.0)
    clock.now += 20.0
    search.note_certificate(20.0)
    assert 2 <= search.count_tunings() < 20
    clock.now += 50.0
    assert search.count_tunings() < 2


def test_the_slowest_trial_counts(clock: Clock):
    search = begin(100.0)
    search.note_trial(10.0, 2)
    before = search.count_tunings()
    search.note_trial(4.0, 2)
    assert search.count_tunings() == before
    search.note_trial(30.0, 2)
    assert search.count_tunings() < before


def test_backends_share_what_is_left_and_learn_anew(clock: Clock):
    search = begin(100.0, 2)
    assert search.left == pytest.approx(50.0)
    search.note_certificate(15.0)
    clock.now += 20.0
    search.begin_backend()
    assert search.left == search.trial_seconds == pytest.approx(80.0)
    clock.now += 90.0
    assert search.left == 0.0
