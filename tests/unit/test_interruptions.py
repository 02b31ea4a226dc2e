"""A signal ends the run at once. Once all is measured, it waits until the result is written."""

import os
import signal
import threading
import time
from collections.abc import Generator

import pytest

from compare.base.interruptions import ENDING, HeldSignals, TimeOver, end_after


@pytest.fixture(autouse=True)
def handlers() -> Generator[None]:
    """Ctrl-C raises as in the program, SIGTERM ends as there, SIGHUP is ignored as under nohup."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    wanted = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: end, signal.SIGHUP: signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    after = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert after == wanted


def come(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_the_first_signal_is_what_is_pending_and_others_are_lost() -> None:
    with HeldSignals() as held:
        held.hold()
        held.hold()
        come(signal.SIGHUP)
        assert held.pending is None
        come(signal.SIGTERM, signal.SIGINT)
    assert isinstance(held.pending, SystemExit)
    assert held.pending.code == 128 + signal.SIGTERM


def test_nothing_is_held_back_before_the_beginning_and_after_the_block() -> None:
    with HeldSignals() as held, pytest.raises(KeyboardInterrupt):
        come(signal.SIGINT)
    with pytest.raises(SystemExit):
        come(signal.SIGTERM)
    held.hold()  # outside its block
    with pytest.raises(KeyboardInterrupt):
        come(signal.SIGINT)
    assert held.pending is None


def test_what_may_be_interrupted_is_and_what_was_held_back_ends_it_at_once() -> None:
    with HeldSignals() as held:
        held.hold()
        with pytest.raises(KeyboardInterrupt), held.let_through():
            come(signal.SIGINT)
        assert held.pending is None
        come(signal.SIGTERM)  # held back again
        began = False
        with pytest.raises(SystemExit), held.let_through():
            began = True
        assert not began


def test_what_never_held_anything_back_lets_it_through() -> None:
    with HeldSignals() as held, held.let_through():
        pass
    with HeldSignals() as held, pytest.raises(ENDING), held.let_through():
        come(signal.SIGTERM)


def test_handlers_are_the_main_threads_alone() -> None:
    found = list[object]()

    def other() -> None:
        with HeldSignals() as held:
            held.hold()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_a_block_ends_after_its_time_and_an_outer_alarm_still_comes() -> None:
    with pytest.raises(TimeOver), end_after(30.0):  # noqa: PT012 -- the outer alarm ends the second sleep
        with pytest.raises(TimeOver), end_after(0.0):
            time.sleep(30.0)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with end_after(30.0):
            pass
        time.sleep(30.0)
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    with end_after(1e-3):
        pass
    assert (before > 0) == (signal.getitimer(signal.ITIMER_REAL)[0] > 0)


def test_a_block_whose_time_is_over_is_held_back_like_a_signal() -> None:
    with end_after(0.05), HeldSignals() as held:
        held.hold()
        time.sleep(0.2)
        assert isinstance(held.pending, TimeOver)
