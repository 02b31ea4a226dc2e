"""`input=stream` trains what `input=resident` trains, and writes no memory that is still to be read."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import jaxbackend.stream
import torchbackend.stream
from compare import knobs, weights
from compare.interface import Array, Arrays, Batch, Session
from tests.parity import recorded_graph, twins

STEPS = 11  # more than there are batches, and no multiple of the steps of a dispatch
DISPATCH = 3

SEVERAL = f"compiled+steps-per-dispatch={DISPATCH}"
SLOW = pytest.mark.slow
CASES = [
    *[("jax", tuning, "digits-cnn", "float64", "bytes") for tuning in ("stock", "compile=off", "compiled", SEVERAL)],
    *[("torch", tuning, "digits-cnn", "float64", "bytes") for tuning in ("stock", "tuned")],
    ("jax", SEVERAL, "digits-cnn", "float32", "values"),
    ("torch", "tuned", "digits-cnn", "float32", "values"),
    ("jax", SEVERAL, "cifar-cnn", "bfloat16", "bytes"),
    ("torch", "stock", "cifar-cnn", "bfloat16", "bytes"),
    pytest.param("torch", "compiled", "cifar-cnn", "float32", "bytes", marks=[SLOW, pytest.mark.thorough]),
    pytest.param("torch", "compiled+channels-last", "digits-cnn", "bfloat16", "values", marks=SLOW),
]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch):
    twins.narrow(monkeypatch)


def pixels(workload: str, count: int, *, size: int = 8, seed: int = 5) -> list[Batch]:
    """Return batches of bytes whose values nothing but their table knows."""
    random = np.random.default_rng(seed)
    drawn = twins.batches(workload, count, size=size)
    levels = random.normal(size=(256, drawn[0].images.shape[-1])).astype(np.float32)
    return [
        Batch(random.integers(0, 256, each.images.shape, dtype=np.uint8), each.labels, levels)  # all of 0 to 255
        for each in drawn
    ]


KINDS = {"bytes": pixels, "values": twins.batches}


def both(backend: str, tuning: str, workload: str, **changes: Any) -> tuple[Session, Session]:
    """Return a resident session and one that streams."""
    resident, stream = (
        twins.session(backend, workload, f"{tuning}+input={kind}", **changes) for kind in ("resident", "stream")
    )
    return resident, stream


def state(session: Session) -> Arrays:
    exported = session.export()
    return {**exported.parameters, **exported.buffers, **exported.optimizer, "losses": session.losses()}


def equal(value: Arrays, reference: Arrays) -> None:
    """Bit for bit."""
    assert value.keys() == reference.keys()
    for name, array in value.items():
        np.testing.assert_array_equal(array, reference[name], err_msg=name)


@pytest.mark.parametrize(("backend", "tuning", "workload", "precision", "kind"), CASES)
def test_a_stream_trains_what_resident_batches_train(
    backend: str, tuning: str, workload: str, precision: str, kind: str
):
    pool = KINDS[kind](workload, 4)
    resident, stream = both(backend, tuning, workload, precision=precision)
    for batches, parts in ((pool, (STEPS,)), (pool[::-1], (4, 1, 6))):  # fed and assigned again, run in parts
        for session in (resident, stream):
            session.assign(weights.randomised(session.signature(), 3))
            session.feed(batches)
            for steps in parts:
                session.run(steps)
            session.wait()
        equal(state(stream), state(resident))
        assert stream.export().step == STEPS


@pytest.mark.parametrize("backend", twins.BOTH)
def test_what_is_recorded_comes_through_the_same_lookup(backend: str):
    batch = pixels("digits-cnn", 1)[0]
    resident, stream = both(backend, "stock", "digits-cnn")
    equal(stream.inspect(batch), resident.inspect(batch))
    equal(state(stream), state(resident))
    np.testing.assert_array_equal(stream.logits(batch.values()), resident.logits(batch.values()))


@pytest.mark.parametrize("backend", twins.BOTH)
def test_micro_batches_are_cut_from_what_crossed(backend: str):
    pool = pixels("digits-cnn", 2)
    resident, stream = both(backend, "stock", "digits-cnn", accumulate=2)
    equal(*(state(twins.trained(session, pool, 5)) for session in (stream, resident)))


@pytest.mark.parametrize("backend", twins.BOTH)
def test_the_input_is_read_back_and_reading_changes_nothing(backend: str):
    dtypes = {"resident": "float64", "stream": "uint8"}
    for name, session in zip(dtypes, both(backend, "stock", "digits-cnn"), strict=True):
        twins.trained(session, pixels("digits-cnn", 3), 4)
        before = state(session)
        found = session.settings()
        session.memory()
        assert (found["input"], found["input_dtype"], found["batch_size"]) == (name, dtypes[name], 8)
        equal(state(session), before)
    values = twins.trained(twins.session(backend, tuning="input=stream"), twins.batches("digits-cnn", 2), 1)
    assert values.settings()["input_dtype"] == "float64"


@pytest.mark.parametrize("backend", twins.BOTH)
def test_other_bytes_and_other_levels_may_follow(backend: str):
    resident, stream = both(backend, "stock", "digits-cnn")
    for pool in (pixels("digits-cnn", 2), pixels("digits-cnn", 3, seed=6), twins.batches("digits-cnn", 2)):
        for session in (resident, stream):
            twins.trained(session, pool, 4)
        equal(state(stream), state(resident))
    for session in (resident, stream):
        twins.trained(session, pixels("digits-cnn", 2, size=6), 3)  # another batch size
    equal(state(stream), state(resident))


@pytest.mark.parametrize("backend", twins.BOTH)
def test_batches_that_no_unit_can_hold_are_an_error(backend: str):
    session = twins.session(backend, tuning="input=stream")
    whole, other = pixels("digits-cnn", 1)[0], pixels("digits-cnn", 1, seed=6)[0]
    one = replace(whole, images=whole.images[:1], labels=whole.labels[:1])  # would be broadcast
    for wrong in (one, other):
        with pytest.raises(ValueError, match="one size and one table of levels"):
            session.feed([whole, wrong])


@pytest.mark.parametrize("kind", ["bytes", "values"])
@pytest.mark.parametrize("count", [1, DISPATCH])
def test_a_graph_reads_what_the_stream_brought(count: int, kind: str, monkeypatch: pytest.MonkeyPatch):
    pool = KINDS[kind]("cifar-cnn", 4)
    plain = twins.trained(twins.session("torch", "cifar-cnn"), pool, STEPS)
    recorded_graph.pretend(monkeypatch)
    spec = twins.spec("torch", "cifar-cnn", "input=stream")
    switches = {**spec.knobs, "graph-capture": True, "steps-per-dispatch": count}
    session = twins.BACKENDS["torch"].open(replace(spec, knobs=switches))
    for _ in range(2):
        session.assign(weights.randomised(session.signature(), 3))
        twins.trained(session, pool, STEPS)
        equal(session.export().parameters, plain.export().parameters)
        np.testing.assert_array_equal(session.losses(), plain.losses())
    found = session.settings()
    assert (found["graph-capture"], found["steps-per-dispatch"], found["input"]) == (True, count, "stream")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no cuda device")
@pytest.mark.parametrize("tuning", ["stock", "tuned", "tuned+graph-capture=off+steps-per-dispatch=1"])
@pytest.mark.parametrize("backend", twins.BOTH)
def test_no_batch_is_torn_on_a_gpu(backend: str, tuning: str):
    pool = pixels("cifar-cnn", 7, size=256)
    losses: list[Array] = []
    for kind in ("resident", "stream"):
        switches = knobs.resolve(backend, f"{tuning}+input={kind}", "cuda", "cifar-cnn")
        spec = twins.spec(backend, "cifar-cnn", precision="float32", device="cuda", batch_size=256)
        session = twins.BACKENDS[backend].open(replace(spec, knobs=switches))
        session.assign(weights.randomised(session.signature(), 3))
        losses.append(twins.trained(session, pool, 60).losses())
    np.testing.assert_allclose(
        losses[1][:30], losses[0][:30], rtol=1e-3
    )  # not bit for bit: sums are taken in any order


class Machine:
    """CUDA's streams and events as far as a stream uses them, which notes what waits for what.

    Each note is a name and the clocks, stream by stream, that were known to be over when it was made.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = self.main = Queue("compute")
        self.host: dict[str, int] = {}  # what the host has seen the end of
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
        """Note one piece of work on the present stream and return which it is."""
        self.now.over = later(self.now.over, self.host)
        self.now.length += 1
        return self.now.name, self.now.length

    def precedes(self, work: tuple[str, int]) -> bool:
        """Whether that work is over before anything launched now on the present stream begins."""
        name, number = work
        return name == self.now.name or max(self.now.over.get(name, 0), self.host.get(name, 0)) >= number

    def seen(self, work: tuple[str, int]) -> bool:
        """Whether the host knows that work to be over."""
        return self.host.get(work[0], 0) >= work[1]


class Queue:
    def __init__(self, name: str) -> None:
        self.name, self.length = name, 0
        self.over: dict[str, int] = {}

    def wait_event(self, event: Any) -> None:
        self.over = later(self.over, event.over)


def later(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {name: max(first.get(name, 0), second.get(name, 0)) for name in first | second}


class Room:
    """Memory of one slot that is written whole and read, and knows by which work it last was."""

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
        """Read by a step on the present stream."""
        assert self.writer is not None
        assert self.machine.precedes(self.writer), "the copy may still be under way"
        self.readers.append(self.machine.launched())
        return self.content


def streaming(patch: pytest.MonkeyPatch) -> tuple[Callable[[Sequence[int]], list[Any]], Queue, Queue]:
    """Return a function that streams batches, units of those sizes, on the machine, and the machine's two streams.

    The function returns what each unit's steps read.
    """
    machine = Machine(patch)
    copies = Queue("copies")
    patch.setattr(torch, "empty", lambda *sizes, pin_memory, **kind: Room(machine, on_host=pin_memory))
    patch.setattr(torch, "empty_like", lambda room, device: Room(machine, on_host=False))
    patch.setattr(torch, "from_numpy", lambda array: int(array[0]))
    patch.setattr(torchbackend.stream, "_form", lambda batch: 0)
    switches = {"steps-per-dispatch": 2, "graph-capture": False, "compile": False, "channels-last": False}
    policy = type("Policy", (), {"parameter_dtype": torch.float32})
    stream = torchbackend.stream.Stream(None, policy, torch.device("cpu"), switches)  # type: ignore[arg-type]
    stream._copies = copies  # type: ignore[assignment]
    stream._trained = lambda images, labels: images.read()  # type: ignore[method-assign]
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
    """A dispatch's losses, which note when somebody waits for them."""

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
