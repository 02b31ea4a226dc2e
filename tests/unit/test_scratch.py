"""The disk that a certificate takes: which contenders' records are there at any time."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from compare.execution import record_certificates
from tests.unit.certified import CASES, FAKE, FIRST, OTHER, SECOND, THIRD, AtOnce, Certified, Look
from tests.unit.certified import certified as certified
from tests.unit.certified import memory as memory


def test_a_contenders_records_go_when_they_are_judged_the_baselines_with_the_last(certified: Certified) -> None:
    def script(look: Look) -> None:
        certified.record(FAKE, FIRST)
        certified.record(OTHER, FIRST)
        certified.record(THIRD, FIRST, precisions=slice(2))
        look()
        assert certified.there() == ["fake 8"] * 3 + ["third 8"] * 2
        certified.record(OTHER, SECOND)
        look()
        assert certified.there() == ["fake 8"] * 3 + ["other 4"] * 3 + ["third 8"] * 2

    certified.run(script)
    assert certified.outcomes.certificates == {}  # of no contender all has come


def test_in_the_end_nothing_is_left(certified: Certified) -> None:
    def script(look: Look) -> None:
        for name in (OTHER, THIRD, FAKE):
            for case in CASES:
                certified.record(name, case)
        look()
        assert certified.there() == []

    certified.run(script)
    assert [*certified.outcomes.certificates] == [OTHER, THIRD]


@pytest.mark.parametrize("failed", [THIRD, FAKE])
def test_records_that_a_failed_side_will_never_let_be_judged_are_deleted(certified: Certified, failed: str) -> None:
    def script(look: Look) -> None:
        for name in (FAKE, OTHER, THIRD):
            certified.record(name, FIRST, precisions=slice(1 if name == failed else 3))
        for outcome in certified.outcomes.runs:
            outcome.status = "crash" if outcome.contender.name == failed else "ok"
        look()
        assert certified.there() == []

    certified.run(script)


def test_of_what_is_recorded_twice_the_timed_precision_alone_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified = Certified(tmp_path, monkeypatch, deterministic=True)

    def script(look: Look) -> None:
        for case in CASES:
            for name in (FAKE, OTHER, THIRD):
                certified.record(name, case)
        look()
        assert certified.there() == ["fake 8", "other 8", "third 8"]

    certified.run(script)


def test_space_is_freed_while_something_is_judged(certified: Certified, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Callable[[], None]] = []

    class Later(AtOnce):
        """Does its work when the test says so."""

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = Future[Any]()
            begun.append(lambda: future.set_result(fn(*args, **kwargs)))
            return future

    monkeypatch.setattr(record_certificates, "ThreadPoolExecutor", Later)

    def script(look: Look) -> None:
        certified.record(FAKE, FIRST)
        assert not certified.frees()
        certified.record(OTHER, FIRST)
        assert certified.frees()
        (judge,) = begun
        judge()
        assert not certified.frees()

    certified.run(script)
