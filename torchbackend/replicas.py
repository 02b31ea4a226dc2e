"""One model in training on several devices: this process's session, and a process with one like it on every other."""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch.multiprocessing as multiprocessing

from compare.interface import Array, Arrays, Batch, Memory, Refused, RunSpec, State, first_line
from torchbackend import memory, parallel
from torchbackend.parallel import Place
from torchbackend.session import TorchSession

_WORDS_LAST_SECONDS = 5.0
_OVER_DEVICES = ("activation/", "logits")


class Replicas:
    """`compare.interface.Session` over all ranks: each call goes to all of them, and each trains on its part.

    Rank 0 is this process. A rank that fails says why before it ends; its neighbours, who wait for it, are then ended.
    """

    def __init__(self, spec: RunSpec, ranks: "Ranks") -> None:
        self._ranks, self._own = ranks, ranks.opened(spec)

    @property
    def steps_per_dispatch(self) -> int:
        """See `compare.interface.Session`."""
        return self._own.steps_per_dispatch

    def signature(self) -> dict[str, tuple[int, ...]]:
        """See `compare.interface.Session`."""
        return self._own.signature()

    def assign(self, arrays: Arrays) -> None:
        """See `compare.interface.Session`."""
        self._ranks.all("assign", arrays)

    def feed(self, batches: Sequence[Batch]) -> None:
        """See `compare.interface.Session`."""
        parts = [_parts(batch, self._ranks.count) for batch in batches]
        self._ranks.each("feed", [[part[rank] for part in parts] for rank in range(self._ranks.count)])

    def run(self, steps: int) -> None:
        """See `compare.interface.Session`."""
        self._ranks.all("run", steps)

    def wait(self) -> None:
        """See `compare.interface.Session`."""
        self._ranks.all("wait")

    def losses(self) -> Array:
        """See `compare.interface.Session`."""
        return np.mean(self._ranks.all("losses"), axis=0)

    def logits(self, images: Array) -> Array:
        """See `compare.interface.Session`."""
        return self._own.logits(images)

    def alone(self, layer: str, inputs: Array, training: bool) -> Array:
        """See `compare.interface.Session`."""
        return self._own.alone(layer, inputs, training)

    def inspect(self, batch: Batch) -> Arrays:
        """See `compare.interface.Session`."""
        found = self._ranks.each("inspect", _parts(batch, self._ranks.count))
        whole = {
            name: np.concatenate([each[name] for each in found]) if name.startswith(_OVER_DEVICES) else array
            for name, array in found[0].items()
        }
        return whole | {"loss": np.mean([each["loss"] for each in found], axis=0)}

    def export(self) -> State:
        """See `compare.interface.Session`."""
        return self._own.export()

    def memory(self) -> Memory:
        """See `compare.interface.Session`: of the device that takes most."""
        found = self._ranks.all("memory")
        most = {
            field.name: max((value for each in found if (value := getattr(each, field.name)) is not None), default=None)
            for field in fields(Memory)
            if field.name != "absent"
        }
        return Memory(**most, absent=found[0].absent)

    def settings(self) -> dict[str, Any]:
        """See `compare.interface.Session`."""
        found = self._ranks.all("settings")
        return found[0] | {"batch_size": sum(each["batch_size"] for each in found)}


class Ranks:
    """The processes of one contender, which live from session to session.

    Args:
        count: how many, this one included.
        device: `cpu` or `cuda`.
        folder: where a file lies by which they find each other, for as long as they live.

    Raises:
        Refused: there are not so many devices.
    """

    def __init__(self, count: int, device: str, folder: Path) -> None:
        self.count, self._place = count, Place(0, count, shared=True)
        self._session: TorchSession | None = None
        self._place.device(device)
        meeting, context = folder / f"ranks-{os.getpid()}", multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        sentinels: list[tuple[int, int]] = []
        for rank in range(1, count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, replace(self._place, rank=rank), device, meeting), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            sentinels.append((rank, process.sentinel))
        threading.Thread(target=_watch, args=(sentinels, count), daemon=True).start()
        parallel.join(self._place, device, meeting)

    def opened(self, spec: RunSpec) -> TorchSession:
        """Open a session on every rank, and return this process's."""

        def open_here() -> None:
            self._session = None  # its memory is given back before another is opened
            self._session = TorchSession(spec, self._place)

        self._together([("open", (spec,))] * (self.count - 1), open_here)
        assert self._session is not None
        return self._session

    def all(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of the session on every rank; return what each gave, in order."""
        return self._together([(name, arguments)] * (self.count - 1), lambda: getattr(self._session, name)(*arguments))

    def each(self, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Call a method on every rank, each with its own argument; return what each gave, in order."""
        return self._together(
            [(name, (argument,)) for argument in arguments[1:]], lambda: getattr(self._session, name)(arguments[0])
        )

    def _together(self, calls: Sequence[tuple[str, tuple[Any, ...]]], here: Callable[[], Any]) -> list[Any]:
        for pipe, call in zip(self._pipes, calls, strict=True):
            with contextlib.suppress(ConnectionError):  # it has ended, and its last words are still to be read
                pipe.send(call)
        try:
            own = here()
        except Exception:
            self._replies(_WORDS_LAST_SECONDS)  # a rank that failed first is the reason for what failed here
            raise
        return [own, *self._replies(None)]

    def _replies(self, seconds: float | None) -> list[Any]:
        """Return what the ranks answer; without `seconds`, wait for all.

        Raises:
            MemoryError, RuntimeError: as a rank says that it has failed.
        """
        answers: dict[Any, Any] = {}
        end = None if seconds is None else time.monotonic() + seconds
        while waiting := [pipe for pipe in self._pipes if pipe not in answers]:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = wait(waiting, left)
            if not ready:
                break
            for pipe in ready:
                answers[pipe] = self._answer(pipe)
        return [answers.get(pipe) for pipe in self._pipes]

    def _answer(self, pipe: Any) -> Any:
        rank = self._pipes.index(pipe) + 1
        try:
            kind, value = pipe.recv()
        except (EOFError, ConnectionError):
            time.sleep(_WORDS_LAST_SECONDS)  # the watch ends this process with the reason
            raise RuntimeError(f"rank {rank} of {self.count} has ended") from None
        if kind == "value":
            return value
        error = {"oom": MemoryError, "refused": Refused}.get(kind, RuntimeError)
        raise error(f"rank {rank} of {self.count}: {value}")


def _parts(batch: Batch, count: int) -> list[Batch]:
    """Return a batch in equal parts."""
    size = len(batch.labels) // count
    cuts = [slice(rank * size, (rank + 1) * size) for rank in range(count)]
    return [Batch(batch.images[cut], batch.labels[cut], batch.levels) for cut in cuts]


def _serve(pipe: Connection, place: Place, device: str, meeting: Path) -> None:
    """Serve the calls of rank 0, until it hangs up, on a session of this process's own."""
    parallel.join(place, device, meeting)
    session: TorchSession | None = None
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            name, arguments = pipe.recv()
            try:
                if name == "open":
                    session, value = None, None
                    session = TorchSession(arguments[0], place)
                else:
                    value = getattr(session, name)(*arguments)
                pipe.send(("value", value))
            except Exception as error:
                traceback.print_exc()
                kind = "oom" if memory.out_of_memory(error) else "refused" if isinstance(error, Refused) else "crash"
                pipe.send((kind, f"{type(error).__name__}: {first_line(error)}"))
                os._exit(1)  # the others wait for it in an exchange


def _watch(sentinels: Sequence[tuple[int, int]], count: int) -> None:
    """End this process, which may be waiting for it, some time after a rank has ended."""
    if not sentinels:
        return
    ended = wait([sentinel for _, sentinel in sentinels])
    rank = next(rank for rank, sentinel in sentinels if sentinel in ended)
    time.sleep(2 * _WORDS_LAST_SECONDS)
    sys.stderr.write(f"rank {rank} of {count} ended, and the others with it\n")
    sys.stderr.flush()
    os._exit(1)
