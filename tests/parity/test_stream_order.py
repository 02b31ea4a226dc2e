"""A stream overwrites no memory before it is read, checked on simulated streams and events."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import jaxbackend.stream
import torchbackend.stream
from compare.base.interface import Batch


class Machine:
    """The part of CUDA's streams and events that a stream uses. It notes their waits.

    Each note is a name and the clocks, stream by stream, that were known to be over when it was made.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = self.main = Queue("compute")
        self.host: dict[str, int] = {}  # work that the host knows to be over
        machine = self

        class Event:
            def __init__(self) -> None:
                self.over: dict[str, int] = {}

            def record(self, queue: "Queue | None" = None) -> None:
                queue = queue or machine.now
                self.over = {**queue.over, queue.name: queue.length}

            def synchronize(self) -> None:
                machine.host = later(machine.host, self.over)

        @contextmanager
        def stream(queue: Queue):
            before, self.now = self.now, queue
            yield
            self.now = before

        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "stream", stream)
        patch.setattr(torch.cuda, "current_stream", lambda: self.now)

    def launched(self) -> tuple[str, int]:
        """Note one piece of work on the present stream and return its number."""
        self.now.over = later(self.now.over, self.host)
        self.now.length += 1
        return self.now.name, self.now.length

    def precedes(self, work: tuple[str, int]) -> bool:
        """Tell whether that work ends before new work on the present stream begins."""
        name, number = work
        return name == self.now.name or max(self.now.over.get(name, 0), self.host.get(name, 0)) >= number

    def seen(self, work: tuple[str, int]) -> bool:
        """Tell whether the host knows that this work is over."""
        return self.host.get(work[0], 0) >= work[1]


class Queue:
    def __init__(self, name: str) -> None:
        self.name, self.length = name, 0
        self.over: dict[str, int] = {}

    def wait_event(self, event: Any) -> None:
        self.over = later(self.over, event.over)


def later(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: max(first.get(name, 0), second.get(name, 0)) for name in first | second}


class Value(int):
    """One batch as a tensor: its number, with a dtype."""

    dtype = torch.int64


class Room:
    """Memory of one slot, written and read as a whole. It knows its last reader and writer."""

    def __init__(self, machine: Machine, on_host: bool) -> None:
        self.machine, self.on_host = machine, on_host
        self.content: Any = None
        self.writer: tuple[str, int] | None = None
        self.readers: list[tuple[str, int]] = []

    def __getitem__(self, index: Any) -> "Room":
        return self

    def copy_(self, other: Any, non_blocking: bool = False) -> None:
        if self.on_host:  # the host writes at once
            assert all(self.machine.seen(reader) for reader in self.readers), "the copy before still reads this"
            self.content, self.readers = other, []
            return
        assert non_blocking
        assert all(self.machine.precedes(reader) for reader in self.readers), "a step still reads this"
        self.writer = self.machine.launched()
        other.readers.append(self.writer)
        self.content, self.readers = other.content, []

    def read(self) -> Any:
        """Read the slot by a step on the present stream."""
        assert self.writer is not None
        assert self.machine.precedes(self.writer), "the copy may still be under way"
        self.readers.append(self.machine.launched())
        return self.content


def streaming(patch: pytest.MonkeyPatch) -> tuple[Callable[[Sequence[int]], list[Any]], Queue, Queue]:
    """Return a function that streams batches in units of those sizes, and the machine's two streams.

    The function returns what each unit's steps read.
    """
    machine = Machine(patch)
    copies = Queue("copies")
    patch.setattr(torch, "empty", lambda *sizes, pin_memory, **kind: Room(machine, on_host=pin_memory))
    patch.setattr(torch, "empty_like", lambda room, device: Room(machine, on_host=False))
    patch.setattr(torch, "from_numpy", lambda array: Value(array[0]))
    switches = {"steps-per-dispatch": 2, "graph-capture": False, "compile": False, "channels-last": False}
    policy = type("Policy", (), {"parameter_dtype": torch.float32})
    stream = torchbackend.stream.Stream(None, policy, torch.device("cpu"), switches)  # type: ignore[arg-type]
    stream._copies = copies  # type: ignore[assignment]
    stream._train = lambda images, labels: images.read()  # type: ignore[method-assign]
    patch.setattr(Queue, "synchronize", lambda queue: None, raising=False)
    stream.feed([Batch(np.array([index]), np.array([index])) for index in range(3)])
    return lambda sizes: [stream.dispatch(size)[1] for size in sizes], machine.main, copies


def test_events_keep_every_writer_behind_the_last_reader(monkeypatch: pytest.MonkeyPatch):
    dispatch, _, _ = streaming(monkeypatch)
    assert dispatch([1, 1, 1, 1, 1, 2, 2, 1, 2, 1, 1]) == [0, 1, 2, 0, 1, 0, 2, 0, 2, 0, 1]


def test_the_next_copy_waits_for_the_steps_before_the_present_ones_only(monkeypatch: pytest.MonkeyPatch):
    dispatch, compute, copies = streaming(monkeypatch)
    for _ in range(4):
        dispatch([1])
        assert copies.over.get("compute", 0) == compute.length - 1


@pytest.mark.parametrize("unheeded", ["host", "copies", "compute"])
def test_without_one_of_the_waits_a_writer_overtakes(unheeded: str, monkeypatch: pytest.MonkeyPatch):
    dispatch, _, _ = streaming(monkeypatch)
    wait = Queue.wait_event
    if unheeded == "host":
        monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: None)
    else:
        heeded = lambda queue, event: None if queue.name == unheeded else wait(queue, event)  # noqa: E731 # a method
        monkeypatch.setattr(Queue, "wait_event", heeded)
    with pytest.raises(AssertionError, match="still"):
        dispatch([1] * 6)


class Result:
    """A dispatch's losses, which note every wait for them."""

    def __init__(self, number: int, log: list[str]) -> None:
        self.number, self.log = number, log

    def block_until_ready(self) -> None:
        self.log.append(f"wait {self.number}")


def test_jax_puts_the_next_unit_first_and_holds_three(monkeypatch: pytest.MonkeyPatch):
    log: list[str] = []
    put = jaxbackend.stream.jax.device_put
    images = [np.full((1, 2, 2, 1), index, np.float32) for index in range(6)]

    def noted(arrays: Any, device: Any) -> Any:
        log.append(f"put {int(arrays[1][0])}")
        return put(arrays, device)

    class Step:
        several = None

        def __call__(self, state: Any, images: Any, labels: Any) -> tuple[Any, Any]:
            log.append(f"train {int(labels[0])}")
            assert int(images[0, 0, 0, 0]) == int(labels[0])
            return state, Result(int(labels[0]), log)

    monkeypatch.setattr(jaxbackend.stream.jax, "device_put", noted)
    policy: Any = type("Policy", (), {"parameter_dtype": np.dtype("float32")})
    step: Any = Step()
    stream = jaxbackend.stream.Stream(step, policy, None, {"steps-per-dispatch": 1})
    stream.feed([Batch(each, np.array([index], np.int32)) for index, each in enumerate(images)])
    for _ in range(5):
        stream.dispatch(None, 1)  # type: ignore[arg-type]
    assert log == [
        *("put 0", "put 1", "train 0"),
        *("put 2", "train 1"),
        *("wait 0", "put 3", "train 2"),
        *("wait 1", "put 4", "train 3"),
        *("wait 2", "put 5", "train 4"),
    ]
