"""Sample the GPU while blocks are timed: clocks, temperature, power, other processes and errors."""

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, cast

from compare.machine.nvml import POWER_CAP, Device

INTERVAL_SECONDS = 0.1
SLOWEST_SECONDS = 0.2
MOST_COST = 0.01

Owns = Callable[[int], bool]
"""Tells whether a process id belongs to this run."""


@dataclass(frozen=True)
class Sample:
    """One sample of the GPU. A figure that could not be read is None.

    Attributes:
        seconds: since the run's start.
        sm_clock_mhz, memory_clock_mhz, temperature_celsius, power_watts: as NVML gives them.
        clock_reasons: bits of `compare.machine.nvml.SLOWDOWNS` and `POWER_CAP`.
        foreign: the ids of processes on the GPU that do not belong to this run.
        own: the number of this run's processes that NVML lists.
        uncorrected_errors: the counter of ECC.
        xids: the critical errors since the sample before.
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
    """The samples of a GPU in a run.

    Attributes:
        samples: the samples in order.
        reason: why there are no samples, or None.
        cost: the CPU time of the sampling, in cores.
        others: the telemetry of further GPUs.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    reason: str | None = None
    cost: float | None = None
    others: "list[Telemetry]" = field(default_factory=list["Telemetry"])

    @property
    def each(self) -> "list[Telemetry]":
        """The telemetry of every GPU, this one's first."""
        return [self, *self.others]

    @property
    def listed(self) -> bool:
        """Whether NVML ever listed a process of this run. If it hides ours, it also hides others."""
        return any(sample.own for sample in self.samples)

    def is_power_capped(self, since: float) -> bool:
        """Tell whether the power limit lowered the clocks of a GPU since that second of the run."""
        recent = (sample for each in self.each for sample in each.samples if sample.seconds >= since)
        return any((sample.clock_reasons or 0) & POWER_CAP for sample in recent)

    def to_json(self) -> dict[str, Any]:
        """Return JSON types, with the samples as one series for each figure."""
        others = [{"lists_processes": each.listed, "samples": each._series()} for each in self.others]
        own = {"lists_processes": self.listed, "samples": self._series()}
        return {"reason": self.reason, "cost_cores": self.cost, **own, "others": others}

    @staticmethod
    def of_json(values: Mapping[str, Any]) -> "Telemetry":
        """Return the telemetry of a result. This is the inverse of `to_json`."""
        others = [Telemetry(_samples(each["samples"])) for each in values.get("others", ())]
        return Telemetry(_samples(values["samples"]), values["reason"], values["cost_cores"], others)

    def _series(self) -> dict[str, list[Any]]:
        return {each.name: [_plain(getattr(sample, each.name)) for sample in self.samples] for each in fields(Sample)}


@contextmanager
def sample(owns: Owns, now: Callable[[], float], count: int) -> Generator[Telemetry]:
    """Sample `count` GPUs every 0.1 s in a thread for the `with` block.

    `now` gives the seconds since the run's start. The interval doubles if sampling takes more than 1 % of a core.
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
            look_at_all()  # for errors after the last sample


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


class RunProcesses:
    """The processes of a run: this one, its children, and their process groups."""

    def __init__(self) -> None:
        self._known = {os.getpid()}

    def add(self, child: int) -> None:
        """Add a child."""
        self._known.add(child)

    def __call__(self, pid: int) -> bool:
        """Tell whether a process belongs to the run. A process that has ended still does."""
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


def select_within(samples: Sequence[Sample], windows: Collection[tuple[float, float]]) -> list[Sample]:
    """Return the samples taken in any of the windows (start, end) in seconds."""
    return [sample for sample in samples if any(start <= sample.seconds <= end for start, end in windows)]


def pair_with_earlier(
    samples: Sequence[Sample], windows: Collection[tuple[float, float]]
) -> list[tuple[Sample | None, Sample]]:
    """Return (sample before, sample) for every sample that ends an interval in which a window lies.

    Counters show the changes between two samples.
    """
    found: list[tuple[Sample | None, Sample]] = []
    for index, sample in enumerate(samples):
        before = samples[index - 1] if index else None
        start = -math.inf if before is None else before.seconds
        if any(start <= high and low <= sample.seconds for low, high in windows):
            found.append((before, sample))
    return found
