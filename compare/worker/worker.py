"""Execute the commands of `compare.base.commands` on one backend, with the one timing loop that all backends share."""

import contextlib
import gc
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from compare.base import communication, descriptions, protocol, records, strict_json, tensors
from compare.base.commands import (
    DeviceTime,
    MemoryUse,
    ModelInfo,
    PruningCheck,
    RequestTimes,
    Restarted,
    Traces,
    TrainingResult,
    TrainingStart,
    UserFiles,
    WarmUpTimes,
    WorkProof,
)
from compare.base.communication import Communication
from compare.base.errors import take_first_line
from compare.base.interface import (
    INFER,
    OWN_WEIGHTS,
    TRAIN,
    Arrays,
    Backend,
    Refused,
    RunSpec,
    Session,
    is_buffer,
)
from compare.base.profiles import ProfileReply
from compare.base.records import Perturbation
from compare.base.requests import FED, InferenceSession
from compare.base.trace import Trace
from compare.data import dataset_file, weights
from compare.machine import memory, resources
from compare.worker import answer_recording, process_memory, profiling, recording, training, user_files, warm_up
from compare.worker.fault_injection import FaultySession, occupy

Clock = Callable[[], float]

_FIRST_LOSSES = 3


def time_steps(session: Session, steps: int, clock: Clock) -> tuple[float, float]:
    """Return the seconds of `steps` steps with all work on the device, and the seconds until their call returned.

    This is the one timing loop.
    """
    start = clock()
    session.run(steps)
    returned = clock()
    session.wait()
    return clock() - start, returned - start


class Worker:
    """Executes commands on one backend. Each public method is a command of `compare.base.commands`."""

    def __init__(self, backend: Backend, clock: Clock = time.perf_counter) -> None:
        self._backend = backend
        self._clock = clock
        self._session: Session | None = None
        self._dispatched = self._before_feed = self._idle_bytes = 0
        # The initial weights of a session on a GPU. On a CPU they would count as used memory.
        self._initial: Arrays | None = None

    @property
    def _open_session(self) -> Session:
        if self._session is None:
            raise RuntimeError("no session is open")
        return self._session

    def open(self, spec: RunSpec) -> ModelInfo:
        """Build the session of a spec, with its initial weights and the first epoch's batches on the device.

        If only the seed and its data are new, keep the open session, because its programs are compiled.
        """
        session, self._session = self._session, None
        if session is not None and spec != replace(self._spec, seed=spec.seed, data=spec.data):
            session = None
            gc.collect()  # frees the old session's memory before the new session opens, also in reference cycles
        self._spec, self._initial = spec, None
        if spec.device == "cpu" and spec.memory_limit_bytes is not None:
            process_memory.limit(spec.memory_limit_bytes)
        self._train, self._test = dataset_file.load(spec.data)
        self._session = session or self._backend.open(spec)
        if getattr(self._session, "task", TRAIN) != spec.task:
            raise Refused(f"backend {self._backend.name} has no task {spec.task!r}; allowed: train")
        initial = self._begin()
        return ModelInfo(
            weights_sha256=weights.digest(initial),
            parameter_count=sum(array.size for name, array in initial.items() if not is_buffer(name)),
            steps_per_dispatch=self._session.steps_per_dispatch,
        )

    def warm_up(self, block_seconds: float, steps: int | None, settles: bool = True) -> WarmUpTimes:
        """Compile the step, choose the block length unless `steps` is given, and train until step times settle.

        `compile_seconds` is the time of the first dispatch less the time of a later one. It is the compile time only
        if the session has not trained before. Unless it `settles`, train the first steps only.
        """
        session = self._open_session
        unit = session.steps_per_dispatch
        first = getattr(session, "loading_seconds", 0.0) + self._time(unit)
        part = _whole_dispatches(session, _FIRST_LOSSES)  # the steps of each of the blocks
        blocks, steady = [self._time(part)], False
        self._first = self._describe_start()
        start = self._clock()
        if not settles:
            steps = part
        elif steps is None:
            steps, blocks, steady = warm_up.choose_block_length(self._time, unit, block_seconds, self._spec.task)
            part = warm_up.shorten(steps, unit, block_seconds, self._spec.task)
        else:
            part = warm_up.shorten(steps, unit, block_seconds, self._spec.task)
            blocks, steady = warm_up.settle(self._time, part)
        return WarmUpTimes(
            first_step_seconds=first,
            compile_seconds=max(0.0, first - unit * float(np.median(blocks)) / part),
            warmup_seconds=self._clock() - start,
            steady=steady,
            steps_per_block=steps,
            first_losses=self._first.losses,
            program=cast(InferenceSession, session).program() if self._spec.task == INFER else None,
        )

    def restart(self) -> Restarted:
        """Take the first steps again, from the initial weights and batches, and describe both starts."""
        before = self._first
        if self._spec.task == INFER:  # the weights stay, because no request may change them
            self._feed()
        else:
            self._begin()
        self._time(before.steps)
        return Restarted(before, self._describe_start())

    def _begin(self) -> Arrays:
        """Set the initial weights, feed the first epoch's batches, and return the weights."""
        session = self._open_session
        initial = self._initial or training.make_initial_weights(session, self._spec)
        session.assign(initial)
        self._dispatched = 0
        self._feed()
        self._initial = initial if self._spec.device == "cuda" else None
        return initial

    def _feed(self) -> None:
        """Feed the first epoch's batches, or some of them for requests."""
        self._before_feed = self._dispatched
        most = FED if self._spec.task == INFER else None
        self._open_session.feed(training.draw_batches_of_epoch(self._spec, self._train, 0, most))

    def _describe_start(self) -> TrainingStart:
        session = self._open_session
        losses = [protocol.drop_infinite(loss) for loss in session.losses()[:_FIRST_LOSSES]]
        with process_memory.reuse_memory():
            initial = self._initial or training.make_initial_weights(session, self._spec)
            moved = training.measure_movement(session, initial)
        return TrainingStart(self._dispatched - self._before_feed, losses, moved)

    def choose_batch(self, batch_size: int) -> None:
        """Answer requests of another batch size from now on."""
        self._spec = replace(self._spec, batch_size=batch_size)
        self._feed()

    def requests(self, count: int) -> RequestTimes:
        """Answer requests, wait for each, and return their times."""
        session, clock = self._open_session, self._clock
        self._dispatched += count
        times = [time_steps(session, 1, clock) for _ in range(count)]
        return RequestTimes([seconds for seconds, _ in times], float(np.median([returned for _, returned in times])))

    def device_time(self, steps: int) -> DeviceTime:
        """Profile `steps` and return how long the device was busy in each, or the reason why that is unknown."""
        session = self._open_session
        session.run(steps)  # so that nothing compiles under the profiler
        session.wait()
        self._dispatched += 2 * steps
        try:
            kernels = session.kernels(steps)
        except Exception as error:
            traceback.print_exc()
            return DeviceTime(reason=f"the framework's profiler failed: {take_first_line(error)}")
        if not kernels:
            return DeviceTime(reason="the framework's profiler showed no kernels of a device")
        return DeviceTime(communication.busy_seconds(kernels, steps))

    def block(self, steps: int) -> float:
        """Time one block and return its seconds."""
        return self._time(steps)

    def spin(self, duration: float, steps: int) -> int:
        """Train blocks of `steps` for at least `duration` seconds and return the number of steps."""
        end, before = self._clock() + duration, self._dispatched
        while self._clock() < end:
            self._time(steps)
        return self._dispatched - before

    def proof(self, steps: int) -> WorkProof:
        """Return evidence that the dispatched steps were trained and that `wait` waited for them.

        The evidence takes three more blocks. The first two have one dispatch each and have certainly ended, because
        their loss was read. The third has `steps`. An export of the state follows each block, and it needs the finished
        state. `unwaited_seconds` is the time of the third export less the time of the second. The first export only
        allocates memory, which takes tens of milliseconds for a large model. No state is exported twice, because JAX
        keeps the host's copy of an array.
        """
        with process_memory.reuse_memory():
            _, least = self._export_when_done(), self._export_when_done()
            block = self._time(steps)
            seconds, exported = self._export()
        bad = np.flatnonzero(~np.isfinite(losses := self._open_session.losses()))
        return WorkProof(
            dispatched=self._dispatched,
            exported=exported,
            not_finite=self._dispatched - losses.size + int(bad[0]) + 1 if bad.size else None,
            block_seconds=block,
            unwaited_seconds=max(0.0, seconds - least),
        )

    def _export_when_done(self) -> float:
        self._time(self._open_session.steps_per_dispatch)
        self._open_session.losses()
        return self._export()[0]

    def _export(self) -> tuple[float, int]:
        """Return the seconds of an export and the step that it counts."""
        start = self._clock()
        step = self._open_session.export().step
        return self._clock() - start, step

    def plant(self, delay_seconds: float, waits: bool = True) -> None:
        """Delay every dispatch from now on. Without `waits`, also leave out the synchronisation."""
        session, device = self._open_session, self._spec.device
        plain = session.wrapped if isinstance(session, FaultySession) else session
        delay = self._backend.delay(delay_seconds, device) or partial(occupy, delay_seconds)
        self._session = cast(Session, FaultySession(plain, delay, apart=device == "cpu", waits=waits))

    def ballast(self, size: int, device: str) -> None:
        """Hold `size` bytes of device memory until this process ends, and reset the peak of its resident memory."""
        memory.reset_peak()
        self._ballast = self._backend.ballast(size, device)

    def train(self, roundoff: float = 0.0, generation: int = 0, only_test: bool = False) -> TrainingResult:
        """Train for the spec's epochs, as a twin if `generation` is not 0."""
        data = self._train, self._test
        return training.train(self._open_session, self._spec, *data, roundoff, generation, only_test=only_test)

    def update(self, steps: int, path: str, roundoff: float, runs: int) -> dict[str, float | None]:
        """Write the change of every parameter and buffer in `steps` steps and return its noise. None is infinite."""
        with process_memory.reuse_memory():
            updates = training.measure_updates(self._open_session, self._spec, self._train, steps, roundoff, runs)
        tensors.save(updates.changes, Path(path))
        return {name: protocol.drop_infinite(value) for name, value in updates.noise.items()}

    def losses(self, roundoff: float, generation: int) -> list[float | None]:
        """Return the loss of every training step, of a twin if `generation` is not 0."""
        return training.measure_losses(self._open_session, self._spec, self._train, roundoff, generation)

    def record(
        self, spec: RunSpec, steps: int, path: str, evenly: bool = False, batch_sizes: Sequence[int] = ()
    ) -> list[str]:
        """Record the arrays of a certificate in the folder `path`, a file for each part, and return their names.

        The names are in execution order. If recording fails, no file stays.
        """

        def keep(part: str, arrays: Arrays) -> None:
            tensors.save(arrays, Path(path, part))

        new = records.Record(Path(path))
        new.begin()
        try:
            with process_memory.reuse_memory():
                if spec.task == INFER:
                    return answer_recording.record(self._backend, spec, batch_sizes, keep)
                return recording.record(self._backend, spec, steps, keep, evenly=evenly)
        except BaseException:
            new.delete()
            raise

    def compile_timed_path(self, spec: RunSpec, steps: int, evenly: bool) -> None:
        """Compile the program of the timed path as `record` does."""
        recording.compile_timed_path(self._backend, spec, steps, evenly=evenly)

    def noise(
        self, spec: RunSpec, steps: int, perturbations: Sequence[Perturbation], batch_sizes: Sequence[int] = ()
    ) -> list[dict[str, float | None]]:
        """Return for each perturbation how far it moves every tensor. None is infinitely far."""
        with process_memory.reuse_memory():
            if spec.task == INFER:
                floors = answer_recording.measure_noise(self._backend, spec, batch_sizes, perturbations)
            else:
                floors = recording.measure_noise(self._backend, spec, steps, perturbations)
        return [{name: protocol.drop_infinite(value) for name, value in floor.items()} for floor in floors]

    def check_pruning(self, spec: RunSpec) -> PruningCheck:
        """Compare a pruned model with its full model, in which all removed channels are zero."""
        return recording.check_pruning(self._backend, spec)

    def trace(self, model: dict[str, Any], batch_size: int, sizes: Sequence[int]) -> Traces:
        """Trace a user's model at its own image size and at each of `sizes`."""
        chosen = descriptions.read_model(model)
        user_files.watch_files()

        def trace_at(size: int) -> Trace | None:
            with contextlib.suppress(Refused):
                return strict_json.decode(Trace, self._backend.trace(chosen.resized(size), batch_size))
            return None

        own = strict_json.decode(Trace, self._backend.trace(chosen, batch_size))
        return Traces(own, [trace_at(size) for size in sizes])

    def list_user_files(self) -> UserFiles:
        """Return the user's files that this process has loaded, or opened since it traced a model."""
        return user_files.find()

    def train_model(self, spec: RunSpec, path: str) -> TrainingResult:
        """Train the model of a spec, and write its weights to a safetensors file, under neutral names."""
        train, test = dataset_file.load(spec.data)
        session = self._backend.open(spec)
        result = training.train(session, spec, train, test)
        state = session.export()
        tensors.save({**state.parameters, **state.buffers}, Path(path))
        return result

    def own_weights(self, spec: RunSpec, path: str) -> None:
        """Write the weights that a user's factory gave its model to a safetensors file, under neutral names."""
        state = self._backend.open(replace(spec, weights=OWN_WEIGHTS)).export()
        tensors.save({**state.parameters, **state.buffers}, Path(path))

    def run_layer(self, spec: RunSpec, path: str, inputs: Mapping[str, Sequence[int]]) -> None:
        """Write the outputs of single layers on random inputs of the given shapes to a safetensors file."""
        tensors.save(recording.record_layers(self._backend, spec, inputs), Path(path))

    def memory(self, steps: int) -> MemoryUse:
        """Train `steps` and return the memory in use, without the bytes of `idle_memory` for the process."""
        session = self._open_session
        session.run(_whole_dispatches(session, steps))
        session.wait()
        held = memory.read_process_bytes(self._spec.device)
        return MemoryUse(session.memory(), None if held is None else held - self._idle_bytes)

    def communication(self, steps: int) -> Communication:
        """Profile `steps` and return the communication that computation does not hide.

        If the profiler fails, return its error as the reason for the missing figure.
        """
        session = self._open_session
        count = _whole_dispatches(session, steps)
        session.run(count)  # so that nothing compiles under the profiler
        session.wait()
        try:
            return communication.measure(session.kernels(count), count)
        except Exception as error:
            traceback.print_exc()
            return Communication(reason=f"the framework's profiler failed: {take_first_line(error)}")

    def profile(self, steps: int, path: str, peaks: bool, lock: str) -> ProfileReply:
        """Profile at least `steps` steps of a session that has not run, and write the profile to `path`.

        Times without the profiler come from other steps. The profiler is off while they run.
        """
        session = self._open_session
        return profiling.profile(session, _whole_dispatches(session, steps), Path(path), self._time, peaks, Path(lock))

    def idle_memory(self, device: str) -> int | None:
        """Remember and return the bytes of this process, which has only imported its framework."""
        size = memory.read_process_bytes(device)
        # NVML does not list a process that holds no device memory.
        self._idle_bytes = size or 0
        return size

    def held(self) -> int:
        """Return the bytes that this process holds on its device, or 0 if they are unknown."""
        return memory.read_process_bytes(self._spec.device) or 0

    def settings(self) -> dict[str, Any]:
        """Return the effective settings, as the framework and the system report them."""
        return {**self._open_session.settings(), **resources.describe_process()}

    def _time(self, steps: int) -> float:
        self._dispatched += steps
        return time_steps(self._open_session, steps, self._clock)[0]


def _whole_dispatches(session: Session, steps: int) -> int:
    """Return the smallest number of steps, at least `steps`, that is a multiple of the steps of a dispatch."""
    return session.steps_per_dispatch * -(-steps // session.steps_per_dispatch)
