"""What the GPU does while blocks are timed: clocks, temperature, power, other processes and errors, sampled aside."""

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, cast

from compare.machine.nvml import Device

INTERVAL_SECONDS = 0.1
SLOWEST_SECONDS = 0.2
MOST_COST = 0.01

Owns = Callable[[int], bool]
"""Tells whether a process id belongs to this run."""


@dataclass(frozen=True)
class Sample:
    """One look at the GPU; a figure is None where it could not be read.

    Attributes:
        seconds: since the run's start.
        sm_clock_mhz, memory_clock_mhz, temperature_celsius, power_watts: as NVML gives them.
        clock_reasons: bits of `compare.machine.nvml.SLOWDOWNS` and `POWER_CAP`.
        foreign: process ids on the GPU that are not of this run.
        own: how many of this run's processes NVML lists.
        uncorrected_errors: ECC's counter. xids: critical errors since the sample before.
    """

    seconds: float
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    clock_reasons: int | None = None
    foreign: tuple[int, ...] | None = None
    own: int | None = None
    uncorrected_errors: int | None = None
    xids: tuple[int, ...] | None = None


@dataclass
class Telemetry:
    """All samples of a GPU in a run, or the `reason` why there are none; `cost` is the CPU time they took, in cores.

    `others` are those of the further GPUs of a run on several.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    reason: str | None = None
    cost: float | None = None
    others: "list[Telemetry]" = field(default_factory=list["Telemetry"])

    @property
    def each(self) -> "list[Telemetry]":
        """That of every GPU, this one's first."""
        return [self, *self.others]

    @property
    def listed(self) -> bool:
        """Whether NVML ever listed a process of this run: where it hides ours, it says nothing of others'."""
        return any(sample.own for sample in self.samples)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types, the samples as one series a figure."""
        others = [{"lists_processes": each.listed, "samples": each._series()} for each in self.others]
        own = {"lists_processes": self.listed, "samples": self._series()}
        return {"reason": self.reason, "cost_cores": self.cost, **own, "others": others}

    @staticmethod
    def of_json(values: Mapping[str, Any]) -> "Telemetry":
        """Return the telemetry of a result, the inverse of `to_json`."""
        others = [Telemetry(_samples(each["samples"])) for each in values.get("others", ())]
        return Telemetry(_samples(values["samples"]), values["reason"], values["cost_cores"], others)

    def _series(self) -> dict[str, list[Any]]:
        return {each.name: [_plain(getattr(sample, each.name)) for sample in self.samples] for each in fields(Sample)}


@contextmanager
def sample(owns: Owns, now: Callable[[], float], count: int) -> Generator[Telemetry]:
    """Sample `count` GPUs every 0.1 s in a thread for the `with` block; `now` gives seconds since the run's start.

    The interval is doubled where sampling takes more than 1 % of a core.
    """
    telemetry, ended = Telemetry(), threading.Event()
    with ExitStack() as stack:
        try:
            devices = [stack.enter_context(closing(Device(number))) for number in range(count)]
        except Exception as error:
            # NVMLError is the binding's own class, or the binding is missing.
            telemetry.reason = f"no NVML: {error}"
            yield telemetry
            return
        telemetry.others += [Telemetry() for _ in devices[1:]]

        def look_at_all() -> None:
            for each, device in zip(telemetry.each, devices, strict=True):
                each.samples.append(look(device, owns, now()))

        def work() -> None:
            began, interval = time.monotonic(), INTERVAL_SECONDS
            while True:
                look_at_all()
                telemetry.cost = time.thread_time() / max(time.monotonic() - began, interval)
                interval = SLOWEST_SECONDS if telemetry.cost > MOST_COST else INTERVAL_SECONDS
                if ended.wait(interval):
                    return

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield telemetry
        finally:
            ended.set()
            thread.join()
            look_at_all()  # errors that came after the last look


def look(device: Device, owns: Owns, seconds: float) -> Sample:
    """Return one sample."""
    pids, xids = device.processes(), device.xids()
    return Sample(
        seconds,
        device.clock_mhz("SM"),
        device.clock_mhz("MEM"),
        device.temperature_celsius(),
        device.power_watts(),
        device.clock_reasons(),
        None if pids is None else tuple(pid for pid in pids if not owns(pid)),
        None if pids is None else sum(map(owns, pids)),
        device.uncorrected_errors(),
        None if xids is None else tuple(xids),
    )


class Family:
    """The processes of a run: this one, its children, and what they started, each child leading a process group."""

    def __init__(self) -> None:
        self._known = {os.getpid()}

    def add(self, child: int) -> None:
        """Take a child in."""
        self._known.add(child)

    def __call__(self, pid: int) -> bool:
        """Tell whether a process belongs to the run; one that has ended still does."""
        if pid in self._known:
            return True
        try:
            group = os.getpgid(pid)
        except ProcessLookupError:
            return False
        if group in self._known and group != os.getpgid(0):
            self._known.add(pid)
            return True
        return False


def _samples(series: Mapping[str, Sequence[Any]]) -> list[Sample]:
    names = [each.name for each in fields(Sample) if each.name in series]
    looks = zip(*(series[name] for name in names), strict=True)
    return [Sample(**dict(zip(names, look, strict=True))) for look in looks]


def _plain(value: Any) -> Any:
    return list(cast("tuple[int, ...]", value)) if isinstance(value, tuple) else value


def within(samples: Sequence[Sample], windows: Collection[tuple[float, float]]) -> list[Sample]:
    """Return the samples taken in any of the windows (start, end) in seconds."""
    return [sample for sample in samples if any(start <= sample.seconds <= end for start, end in windows)]


def since(samples: Sequence[Sample], windows: Collection[tuple[float, float]]) -> list[tuple[Sample | None, Sample]]:
    """Return (sample before, sample) for every sample whose span since the one before touches a window.

    Counters tell what happened between two looks.
    """
    found: list[tuple[Sample | None, Sample]] = []
    for index, sample in enumerate(samples):
        before = samples[index - 1] if index else None
        start = -math.inf if before is None else before.seconds
        if any(start <= high and low <= sample.seconds for low, high in windows):
            found.append((before, sample))
    return found
