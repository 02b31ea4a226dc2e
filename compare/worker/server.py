"""The child's side: serve one backend over the pipe, with the one timing loop that every backend shares."""

import contextlib
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from compare.base import communication, descriptions, process_family, protocol, records, tensors
from compare.base.interface import (
    OWN_WEIGHTS,
    Arrays,
    Backend,
    DiskFull,
    Refused,
    RunSpec,
    Session,
    first_line,
    is_buffer,
)
from compare.base.process_group import ProcessGroup, last_words
from compare.base.records import Perturbation
from compare.data import dataset_file, weights
from compare.machine import memory
from compare.worker import memory_limit, memory_reuse, rank_worker, recording, training, warm_up
from compare.worker.fault_injection import FaultySession, occupy

Clock = Callable[[], float]

_FIRST_LOSSES = 3


def timed(session: Session, steps: int, clock: Clock) -> float:
    """Return the seconds that `steps` training steps take, device work included: the one timing loop."""
    start = clock()
    session.run(steps)
    session.wait()
    return clock() - start


class Worker:
    """Carries out the runner's commands on one backend; every public method is a command of the protocol."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._session: Session | None = None
        self._dispatched = self._idle_bytes = 0
        # The initial weights, until it is told how training began; on a CPU their memory would be counted.
        self._start: Arrays | None = None

    @property
    def _open_session(self) -> Session:
        if self._session is None:
            raise RuntimeError("no session is open")
        return self._session

    def open(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Build the session of a spec with its initial weights and the first epoch's batches on the device.

        Where another seed and its data are all that is new, the open session goes on, whose programs are compiled.
        """
        told, session, self._session = RunSpec(**spec), self._session, None
        if session is not None and told != replace(self._spec, seed=told.seed, data=told.data):
            session = None
            gc.collect()  # its memory is given back before another is opened, that of reference cycles too
        self._spec = told
        if told.device == "cpu" and told.memory_limit_bytes is not None:
            memory_limit.hold(told.memory_limit_bytes)
        self._train, self._test = dataset_file.load(told.data)
        self._session = session or self._backend.open(told)
        initial = self._begin()
        return {
            "weights_sha256": weights.digest(initial),
            "parameter_count": sum(array.size for name, array in initial.items() if not is_buffer(name)),
            "steps_per_dispatch": self._session.steps_per_dispatch,
        }

    def warm_up(self, block_seconds: float, steps: int | None) -> dict[str, Any]:
        """Take a dispatch, choose the block length unless given, and warm up until step times have settled.

        `compile_seconds` is what that dispatch took longer than later ones: compilation, if it is the session's first.
        """
        session = self._open_session
        unit = session.steps_per_dispatch
        first = self._timed(unit)
        self._timed(_whole_dispatches(session, _FIRST_LOSSES))
        self._first = self._begun()
        start = self._clock()
        if steps is None:
            steps, blocks, steady = warm_up.chosen(self._timed, unit, block_seconds)
        else:
            blocks, steady = warm_up.settle(self._timed, steps)
        return {
            "first_step_seconds": first,
            "compile_seconds": max(0.0, first - unit * float(np.median(blocks)) / steps),
            "warmup_seconds": self._clock() - start,
            "steady": steady,
            "steps_per_block": steps,
            "first_losses": self._first["losses"],
        }

    def restart(self) -> dict[str, Any]:
        """Take the steps anew that came before `warm_up` settled, from the initial weights and batches.

        Returns how training began then (`before`) and now (`after`): its first `losses`, and how far so many `steps`
        have `moved` each parameter (`compare.worker.training.moved`).
        """
        before = self._first
        self._begin()
        self._timed(before["steps"])
        return {"before": before, "after": self._begun()}

    def _begin(self) -> Arrays:
        """Set the initial weights, which are returned, and feed the first epoch's batches."""
        session = self._open_session
        start = training.initial(session, self._spec)
        session.assign(start)
        session.feed(training.epoch(self._spec, self._train, 0))
        self._start, self._dispatched = start if self._spec.device == "cuda" else None, 0
        return start

    def _begun(self) -> dict[str, Any]:
        """Return how training began: what `again` has of it."""
        session = self._open_session
        losses = [protocol.finite(loss) for loss in session.losses()[:_FIRST_LOSSES]]
        with memory_reuse.kept():
            moved = training.moved(session, self._start or training.initial(session, self._spec))
        self._start = None
        return {"steps": self._dispatched, "losses": losses, "moved": moved}

    def block(self, steps: int) -> float:
        """Time one block and return its seconds."""
        return self._timed(steps)

    def spin(self, seconds: float, steps: int) -> int:
        """Train blocks of `steps` for at least `seconds`; return the steps taken."""
        end, before = self._clock() + seconds, self._dispatched
        while self._clock() < end:
            self._timed(steps)
        return self._dispatched - before

    def proof(self, steps: int) -> dict[str, Any]:
        """Return what shows that the dispatched work was done, and that `wait` waited for it.

        Three more blocks are taken, two of a single dispatch, which has certainly ended once its loss is read, and one
        of `steps`. An export follows each and needs the finished state: what the last block leaves for its export is
        `unwaited_seconds` of its `block_seconds`, beyond what the second export took. The first is for the memory that
        the others then have: it takes it page by page, in a time that differs by tens of milliseconds where a model is
        large. No state is exported twice: JAX keeps an array's copy on the host, which then costs nothing.
        `not_finite` is the first step since `feed` whose loss was not (None: all were).
        """
        with memory_reuse.kept():
            _, least = self._exported_when_done(), self._exported_when_done()
            block = self._timed(steps)
            seconds, exported = self._exported()
        bad = np.flatnonzero(~np.isfinite(losses := self._open_session.losses()))
        return {
            "dispatched": self._dispatched,
            "exported": exported,
            "not_finite": self._dispatched - losses.size + int(bad[0]) + 1 if bad.size else None,
            "block_seconds": block,
            "unwaited_seconds": max(0.0, seconds - least),
        }

    def _exported_when_done(self) -> float:
        self._timed(self._open_session.steps_per_dispatch)
        self._open_session.losses()
        return self._exported()[0]

    def _exported(self) -> tuple[float, int]:
        start = self._clock()
        step = self._open_session.export().step
        return self._clock() - start, step

    def plant(self, delay_seconds: float, waits: bool = True) -> None:
        """Put a delay before every dispatch from now on, and leave out the synchronisation unless `waits`."""
        session, device = self._open_session, self._spec.device
        plain = session.wrapped if isinstance(session, FaultySession) else session
        delay = self._backend.delay(delay_seconds, device) or partial(occupy, delay_seconds)
        self._session = cast(Session, FaultySession(plain, delay, apart=device == "cpu", waits=waits))

    def ballast(self, size: int, device: str) -> None:
        """Hold `size` bytes of device memory until this process ends; its peak resident set begins anew."""
        memory.reset_peak()
        self._ballast = self._backend.ballast(size, device)

    def train(self, roundoff: float = 0.0, generation: int = 0) -> dict[str, Any]:
        """Train for the spec's epochs, as a twin if asked (`losses`); return losses by epoch and accuracies."""
        return training.train(self._open_session, self._spec, self._train, self._test, roundoff, generation)

    def update(self, steps: int, path: str, roundoff: float, runs: int) -> dict[str, float | None]:
        """Write what steps change of each parameter and buffer, and return its noise, None where infinite.

        See `compare.worker.training.updates`.
        """
        with memory_reuse.kept():
            found = training.updates(self._open_session, self._spec, self._train, steps, roundoff, runs)
        tensors.save(found.changes, Path(path))
        return {name: protocol.finite(value) for name, value in found.noise.items()}

    def losses(self, roundoff: float, generation: int) -> list[float | None]:
        """Return the loss of every step of training, or of a twin of it (`compare.worker.training.losses`)."""
        return training.losses(self._open_session, self._spec, self._train, roundoff, generation)

    def record(self, spec: dict[str, Any], steps: int, path: str, evenly: bool = False) -> list[str]:
        """Record the certificate's arrays of `spec`, a file for each part of them in the folder `path`, which it makes.

        `evenly` is that of `recording.record`. Returns their names in execution order; they are read by
        `compare.base.records.Record`. If it fails, no file stays.
        """

        def keep(part: str, arrays: Arrays) -> None:
            tensors.save(arrays, Path(path, part))

        made = records.Record(Path(path))
        made.begin()
        try:
            with memory_reuse.kept():
                return recording.record(self._backend, RunSpec(**spec), steps, keep, evenly=evenly)
        except BaseException:
            made.delete()
            raise

    def noise(
        self, spec: dict[str, Any], steps: int, perturbations: list[Perturbation]
    ) -> list[dict[str, float | None]]:
        """Return for each perturbation how far it moves every tensor, in the precision of `spec` (None: infinitely)."""
        with memory_reuse.kept():
            found = recording.noise(self._backend, RunSpec(**spec), steps, perturbations)
        return [{name: protocol.finite(value) for name, value in floor.items()} for floor in found]

    def trace(self, model: dict[str, Any], batch_size: int, sizes: list[int]) -> dict[str, Any]:
        """Return what a user's model does in one pass (`compare.base.trace.Trace` as JSON), as `own`.

        `resized` is the same at each of `sizes`, None where the model takes no images of that size.
        """
        chosen = descriptions.model_from_json(model)

        def at(size: int) -> dict[str, Any] | None:
            with contextlib.suppress(Refused):
                return self._backend.trace(chosen.resized(size), batch_size)
            return None

        return {"own": self._backend.trace(chosen, batch_size), "resized": [at(size) for size in sizes]}

    def own_weights(self, spec: dict[str, Any], path: str) -> None:
        """Write the weights that a user's factory gave its model to a safetensors file, under neutral names."""
        state = self._backend.open(replace(RunSpec(**spec), weights=OWN_WEIGHTS)).export()
        tensors.save({**state.parameters, **state.buffers}, Path(path))

    def run_layer(self, spec: dict[str, Any], inputs: dict[str, list[int]], path: str) -> None:
        """Write what each layer makes of random inputs of the given shape (`compare.worker.recording.record_layers`)."""
        tensors.save(recording.record_layers(self._backend, RunSpec(**spec), inputs), Path(path))

    def memory(self, steps: int) -> dict[str, Any]:
        """Train a few steps; return the framework's memory figures, and the process's less those of `idle_memory`."""
        session = self._open_session
        session.run(_whole_dispatches(session, steps))
        session.wait()
        held = memory.process_bytes(self._spec.device)
        return {"framework": vars(session.memory()), "process": None if held is None else held - self._idle_bytes}

    def communication(self, steps: int) -> dict[str, Any]:
        """Return how much communication computation did not hide in a few steps (`compare.base.communication`).

        A profiler that cannot do its work is a reason for there being no figure, not a failure.
        """
        session = self._open_session
        taken = _whole_dispatches(session, steps)
        session.run(taken)  # nothing is compiled under the profiler
        session.wait()
        try:
            return communication.figures(session.kernels(taken), taken)
        except Exception as error:
            traceback.print_exc()
            return communication.absent(f"the framework's profiler failed: {first_line(error)}")

    def idle_memory(self, device: str) -> int | None:
        """Note and return the bytes of this process, which has done nothing but import its framework."""
        found = memory.process_bytes(device)
        # A process that has only imported its framework holds no device memory, and NVML does not list it.
        self._idle_bytes = found or 0
        return found

    def held(self) -> int:
        """Return the bytes that this process holds on a GPU; 0 on a CPU, and where NVML does not tell."""
        return (memory.process_bytes("cuda") or 0) if self._spec.device == "cuda" else 0

    def settings(self) -> dict[str, Any]:
        """Return the effective settings, read back."""
        return self._open_session.settings()

    def _timed(self, steps: int) -> float:
        self._dispatched += steps
        return timed(self._open_session, steps, self._clock)


COMMANDS = (
    "open",
    "warm_up",
    "block",
    "spin",
    "proof",
    "restart",
    "plant",
    "ballast",
    "train",
    "update",
    "losses",
    "record",
    "noise",
    "trace",
    "own_weights",
    "run_layer",
    "memory",
    "communication",
    "idle_memory",
    "held",
    "settings",
)


def serve(backend: Backend, clock: Clock = time.perf_counter, *, process_group: ProcessGroup | None = None) -> None:
    """Serve `backend` on the pipe descriptors given as the two command-line arguments until the runner hangs up.

    With the argument `--rank`, be one of a contender's further processes instead, of that `process_group`.
    """
    if sys.argv[1] == "--rank" and process_group is not None:
        rank_worker.serve(process_group)
    sys.stdout = sys.stderr
    process_family.end_with_parent(os.getppid())
    process_family.be_killed_first()
    channel = protocol.Channel(int(sys.argv[1]), int(sys.argv[2]))
    channel.send({"protocol": protocol.VERSION, "backend": backend.name, "versions": backend.versions()})
    worker = Worker(backend, clock)
    while True:
        try:
            message = channel.receive()
            channel.send(_answer(backend, worker, message))
        except (EOFError, BrokenPipeError):
            process_family.end()


def _answer(backend: Backend, worker: Worker, message: protocol.Message) -> protocol.Message:
    command = message.pop("command")
    try:
        if command not in COMMANDS:
            raise ValueError(f"unknown command {command!r}")
        return {"value": getattr(worker, command)(**message)}
    except Refused as error:
        told = {"status": "refused", "reason": str(error), "disk_full": isinstance(error, DiskFull)}
        return {"error": told}  # with all its lines
    except Exception as error:
        traceback.print_exc()
        return {"error": last_words(backend.out_of_memory, error)}


def _whole_dispatches(session: Session, steps: int) -> int:
    """Return the least number of steps, `steps` or more, that are dispatched as those that are timed."""
    return session.steps_per_dispatch * -(-steps // session.steps_per_dispatch)
