"""What a fake process does beside its arithmetic: the scripted clock, the log, and faults."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from compare.base.interface import Array, DiskFull, Refused

MEGABYTES = 4


@dataclass(frozen=True)
class Behaviour:
    """The script of one fake backend.

    Attributes:
        step_seconds: scripted time of one training step.
        slowdown: by number of devices, as text, how many times as long a step takes there; 1 where it is not listed.
        knob_factors: by knob, how many times as long a step takes with it.
        compile_seconds: scripted time that the first step of each process takes more, halved from process to process.
        open_seconds: real time that the process takes to open its session.
        launch_noise: standard deviation of ln(speed) from process to process.
        step_noise: standard deviation of ln(time) from block to block.
        seed: of both noises.
        fault: one of `Script._FAULTS`, a fault of the arithmetic (`tests.fakebackend.session`), or `none`.
        at: the session's method, `open` or `start`, at which a fault of the process happens.
        only_with: the knob without which the fault does not happen; "" for none.
        process: the number, from 0, of the process of this backend that has the fault; None for all of them.
        visit: the number, from 0, of the process's visit to that place at which the fault happens; None for every one.
        most_images: the largest batch that it can train.
        base_bytes: memory that a training step needs, the batch apart; counts under a memory limit only.
        image_bytes: memory that it needs for each image of a batch.
        when_full: the fault of the process that happens where memory is too small; `none` raises an error that the
            backend knows for that.
    """

    step_seconds: float = 4e-3
    slowdown: Mapping[str, float] = field(default_factory=dict[str, float])
    knob_factors: Mapping[str, float] = field(default_factory=dict[str, float])
    compile_seconds: float = 0.0
    open_seconds: float = 0.0
    launch_noise: float = 0.0
    step_noise: float = 0.0
    seed: int = 0
    fault: str = "none"
    at: str = "run"
    only_with: str = ""
    process: int | None = None
    visit: int | None = None
    most_images: int | None = None
    base_bytes: int = 0
    image_bytes: int = 0
    when_full: str = "none"


class Script:
    """One process's part: `clock` reports scripted seconds, `at` has the faults happen."""

    def __init__(self, name: str, variable: str) -> None:
        values: dict[str, Any] = json.loads(variable)
        self.name = name
        self.behaviour = Behaviour(**values.get(name, {}))
        self.knobs: Mapping[str, Any] = {}  # of the open session
        self._folder, self._logs = Path(values["folder"]), dict[str, TextIO]()
        self.process = self._claim_number()
        self._random = np.random.default_rng([self.behaviour.seed, self.process, *name.encode()])
        self._launch = np.exp(self._random.normal(0, self.behaviour.launch_noise))
        self._now = 0.0
        self._compiling = self.behaviour.compile_seconds * 0.5**self.process
        self._visits = -1

    def clock(self) -> float:
        return self._now

    def advance(self, steps: float) -> None:
        """Let the time of `steps` training steps pass."""
        noise = np.exp(self._random.normal(0, self.behaviour.step_noise))
        self._now += float(steps * self.behaviour.step_seconds * self._launch * noise) + self._compiling
        self._compiling = 0.0

    def order(self, count: int) -> Array:
        """Return the numbers from 0 to `count` - 1 in an order that changes from call to call."""
        return self._random.permutation(count)

    def pass_seconds(self, seconds: float) -> None:
        """Let seconds pass."""
        self._now += seconds * (1.02 if self.has("fast-clock") else 1)

    def has(self, fault: str) -> bool:
        """Whether this process has that fault."""
        if self.behaviour.fault != fault or self.behaviour.process not in (None, self.process):
            return False
        return not self.behaviour.only_with or bool(self.knobs.get(self.behaviour.only_with))

    def at(self, place: str) -> None:
        """Say in the log that the process came to `place`, and let the fault scripted for it happen."""
        self._log("calls", f"{self.name} {self.process} {os.getpid()} {place}")
        if place == "open":
            time.sleep(self.behaviour.open_seconds)
        self._visits += place == self.behaviour.at
        here = place == self.behaviour.at and self.behaviour.visit in (None, self._visits)
        if here and self.has(self.behaviour.fault) and self.behaviour.fault in self._FAULTS:
            self._FAULTS[self.behaviour.fault](self)

    def compile(self, program: str, *, keeps_traces: bool) -> None:
        """Find a program and its trace in the cache of compiled programs, or leave them there. Log which."""
        if cache := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
            path = Path(cache, f"{self.name}-{program}")
            trace = path.with_name(f"{path.name}-trace")
            self._log("programs", f"{self.name} {'loads' if path.exists() else 'compiles'} {program}")
            if not (keeps_traces and trace.exists()):
                self._log("programs", f"{self.name} traces {program}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("code")
            if keeps_traces:
                trace.write_text("graph")

    def hold(self, images: int, limit_bytes: int | None) -> None:
        """Take the memory of a step on that many images."""
        script = self.behaviour
        needed = script.base_bytes + images * script.image_bytes
        if (script.most_images is None or images <= script.most_images) and needed <= (limit_bytes or needed):
            return
        if script.when_full in self._FAULTS:
            self._FAULTS[script.when_full](self)
        raise RuntimeError(f"out of fake memory: {needed} bytes wanted")

    def _print(self) -> None:
        line = "x" * 1023 + "\n"
        for _ in range(MEGABYTES << 9):
            sys.stdout.write(line)
            os.write(1, line.encode())

    def _stall(self) -> None:
        self.pass_seconds(10)

    def _hang(self) -> None:
        time.sleep(3600)

    def _hang_in_native_code(self) -> None:
        ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps the interpreter lock: no other Python thread runs

    def _exit(self) -> None:
        os._exit(7)

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _out_of_memory(self) -> None:
        raise MemoryError("scripted: 8 GiB wanted")

    def _raise(self) -> None:
        raise RuntimeError("scripted failure\nwith a second line")

    def _refuse(self) -> None:
        raise Refused("scripted refusal")

    def _fill_the_disk(self) -> None:
        raise DiskFull("no space is left, scripted")

    def _start_grandchild(self) -> None:
        process = subprocess.Popen(["sleep", "3600"])
        self._log("grandchildren", str(process.pid))

    def _start_grandchild_and_hang(self) -> None:
        self._start_grandchild()
        self._hang()

    def _fork_and_die(self) -> None:
        # A fork holds copies of the pipe's ends: the runner sees no end of file when the worker dies.
        pid = os.fork()
        if pid == 0:
            self._hang()
        self._log("grandchildren", str(pid))
        self._kill()

    def _break_protocol(self) -> None:
        os.write(int(sys.argv[2]), b"{not json\n")

    _FAULTS = {  # noqa: RUF012 -- a table of the functions above
        "print": _print,
        "stall": _stall,
        "hang": _hang,
        "hang-native": _hang_in_native_code,
        "exit": _exit,
        "kill": _kill,
        "oom": _out_of_memory,
        "raise": _raise,
        "refuse": _refuse,
        "disk-full": _fill_the_disk,
        "grandchild": _start_grandchild,
        "grandchild-hang": _start_grandchild_and_hang,
        "fork-die": _fork_and_die,
        "garbage": _break_protocol,
    }

    def _claim_number(self) -> int:
        number = 0
        while True:
            try:
                (self._folder / f"{self.name}-{number}.pid").open("x").write(str(os.getpid()))
                return number
            except FileExistsError:
                number += 1

    def _log(self, name: str, line: str) -> None:
        if name not in self._logs:
            self._logs[name] = (self._folder / f"{name}.log").open("a", buffering=1)  # one write a line
        self._logs[name].write(f"{line}\n")


class Silent(Script):
    """A script without log or files."""

    def at(self, place: str) -> None:
        pass

    def compile(self, program: str, *, keeps_traces: bool) -> None:
        pass

    def _claim_number(self) -> int:
        return 0
