"""The result of `samestep scale` as typed, frozen objects, a class for each object of `scaling.schema.json`.

Each field has the name of its key. Times are seconds, sizes are bytes. Keys that no class names stay in `extra`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from compare.base.typed_json import JsonObject
from compare.results.model import Comparison, Environment, Interval, StepTimes, Voided

WEAK, STRONG = MODES = ("weak", "strong")


@dataclass(frozen=True, kw_only=True)
class ScalingSpec(JsonObject):
    """The settings of a scaling.

    Attributes:
        devices: the completed numbers of devices, fewest first.
        devices_requested: all numbers of devices that the user asked for.
        rotation: over how many GPUs the rounds rotated.
        mode: one of `MODES`.
        batch_size: images per step, of each device in weak scaling, of all devices in strong scaling.
    """

    workload: str
    contenders: tuple[str, ...]
    devices: tuple[int, ...]
    devices_requested: tuple[int, ...]
    rotation: int
    mode: str
    batch_size: int
    batch_norm: str
    precision: str
    device: str
    rounds: int
    seed: int
    epochs: int
    confidence: float

    def total_batch(self, devices: int) -> int:
        """Return the images per step of so many devices together."""
        return self.batch_size * (devices if self.mode == WEAK else 1)


@dataclass(frozen=True, kw_only=True)
class RunAgreement(JsonObject):
    """The agreement of one comparison, in short."""

    status: str
    reason: str | None
    first_mismatch: str | None


@dataclass(frozen=True, kw_only=True)
class Run(JsonObject):
    """The comparison on one number of devices. `file` is its whole result, relative to the scaling's folder."""

    devices: int
    batch_size: int
    file: str
    sha256: str
    agreement: RunAgreement
    comparisons: tuple[Comparison, ...]
    voided: tuple[Voided, ...]

    @property
    def void_rounds(self) -> frozenset[int]:
        """Return the rounds that count for no contender."""
        return frozenset(voided.round for voided in self.voided)


@dataclass(frozen=True, kw_only=True)
class Entry(JsonObject):
    """One contender on one number of devices.

    Attributes:
        parallel: the value of its knob `parallel`.
        batch_size: images per step over all devices.
        agreement: the worst status of its certificates there.
        memory_per_device_bytes: live peak on one device.
        communication_seconds: exposed seconds per step and device.
        absent: the reason for each figure that is None.
    """

    contender: str
    parallel: str
    devices: int
    mode: str
    batch_size: int
    status: str
    reason: str | None
    unproven: str | None
    agreement: str
    kernel_search: str | None
    images_per_second: float | None
    efficiency: Interval | None
    step_seconds: StepTimes | None
    memory_per_device_bytes: int | None
    communication_seconds: float | None
    absent: Mapping[str, str]

    @property
    def samples(self) -> tuple[tuple[float, ...], ...]:
        """Return [rounds][blocks] seconds per step, empty if nothing was timed."""
        return self.step_seconds.samples if self.step_seconds else ()


@dataclass(frozen=True, kw_only=True)
class Scaling(JsonObject):
    """A whole scaling: a run for each number of devices, and an entry for each contender and number of devices."""

    schema_version: int
    kind: str
    id: str
    created: str
    command: tuple[str, ...]
    spec: ScalingSpec
    environment: Environment
    runs: tuple[Run, ...]
    scaling: tuple[Entry, ...]

    @property
    def device_name(self) -> str | None:
        """Return the name of the device that contenders trained on, None if it was not recorded."""
        return self.environment.device_name(self.spec.device)
