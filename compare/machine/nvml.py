"""NVIDIA's management library (NVML): the GPUs of this machine, their figures and their processes.

Only this module calls NVML. A figure that a GPU, driver or binding does not report is None and never 0.
Names and units are those of the NVML API reference (docs.nvidia.com/deploy/nvml-api).
"""

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NotRequired, TypedDict, TypeVar, cast

T = TypeVar("T")

SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Clock event reasons from outside the workload by bit (nvmlClocksEventReasons)."""

POWER_CAP = 0x04
"""The clock event reason of a power cap, which the workload itself causes."""

_XID = 0x08  # nvmlEventTypeXidCriticalError


class GpuFacts(TypedDict):
    """What NVML says of one GPU. Memory is in bytes, clocks in MHz, power in watts. None stands for unknown."""

    index: int
    name: str
    uuid: str | None
    memory_bytes: int | None
    persistence: bool | None
    ecc: bool | None
    mig: bool | None
    power_limit_watts: float | None
    power_limit_default_watts: float | None
    sm_clock_mhz: int | None
    sm_clock_limit_mhz: int | None
    memory_clock_mhz: int | None
    application_clock_mhz: int | None


class NvidiaFacts(TypedDict):
    """The GPUs of this machine and their driver. Without any GPU, `reason` says why."""

    gpus: list[GpuFacts]
    driver: str | None
    cuda_driver: str | None
    reason: NotRequired[str]


def load() -> Any:
    """Return the NVML binding, which has no type annotations. Tests replace it with a scripted one here."""
    return importlib.import_module("pynvml")


def describe() -> NvidiaFacts:
    """Return the GPUs and their driver, as JSON types. Starts no CUDA context."""
    try:
        nvml = load()
    except ImportError as error:
        return _explain_absence(f"nvidia-ml-py cannot be imported: {error}")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _explain_absence(f"NVML: {error}")
    try:
        count = cast(int, nvml.nvmlDeviceGetCount())
        found: NvidiaFacts = {
            "gpus": [_gpu(nvml, index) for index in range(count)],
            "driver": read(nvml, lambda: decode_text(nvml.nvmlSystemGetDriverVersion())),
            "cuda_driver": read(nvml, lambda: _cuda_version(nvml.nvmlSystemGetCudaDriverVersion_v2())),
        }
        if not count:
            found["reason"] = "NVML sees no GPU"
        return found
    except nvml.NVMLError as error:
        return _explain_absence(f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()


def _explain_absence(reason: str) -> NvidiaFacts:
    return {"gpus": [], "driver": None, "cuda_driver": None, "reason": reason}


def read_process_bytes(pid: int) -> int | None:
    """Return the memory in bytes of a process on the GPU where it holds most.

    Return None if NVML is missing or does not list the process. A container or virtual machine may hide process ids.
    """
    nvml = load()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        listings = read(nvml, lambda: [nvml.nvmlDeviceGetComputeRunningProcesses(handle) for handle in handles]) or ()
        held = [process.usedGpuMemory for listed in listings for process in listed if process.pid == pid]
        return max(held) if held and None not in held else None
    finally:
        nvml.nvmlShutdown()


def read(nvml: Any, get: Callable[[], T]) -> T | None:
    """Return the value of `get`, or None if this GPU, driver or binding does not report it."""
    try:
        return get()
    except (nvml.NVMLError, AttributeError):
        return None


def decode_text(value: str | bytes) -> str:
    """Return text. Bindings before 11.5 give bytes."""
    return value.decode() if isinstance(value, bytes) else value


def list_named() -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES, or none if it is not set."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [] if chosen is None else [each.strip() for each in chosen.split(",")]


def list_visible() -> list[str]:
    """Return the GPUs that a child sees by number or UUID: NVML's, or those that CUDA_VISIBLE_DEVICES names.

    The list ends before the first entry that is repeated or is no GPU of this machine. Source: CUDA programming guide,
    environment variables.
    """
    uuids, found = [each.get("uuid") for each in describe()["gpus"]], list[str]()
    for entry in list_named() or map(str, range(len(uuids))):
        is_one = any(entry.startswith("MIG-") or is_named_by(entry, index, uuid) for index, uuid in enumerate(uuids))
        if not is_one or entry in found:
            break
        found.append(entry)
    return found


def is_named_by(entry: str, index: int, uuid: str | None) -> bool:
    """Tell whether an entry of CUDA_VISIBLE_DEVICES names that GPU by its number or the beginning of its UUID.

    A UUID begins with `GPU-`.
    """
    if entry.isdecimal():
        return int(entry) == index
    return entry.startswith("GPU-") and (uuid or "").startswith(entry)


def name_first_gpu() -> str:
    """Return number or UUID of the GPU that both frameworks train on, the first in CUDA_VISIBLE_DEVICES."""
    return (list_named() or ["0"])[0]


def find_first(gpus: Sequence[GpuFacts]) -> GpuFacts | None:
    """Return the GPU among those of `describe` that `first_name` denotes, or None."""
    return next((gpu for gpu in gpus if is_named_by(name_first_gpu(), gpu["index"], gpu["uuid"])), None)


class Device:
    """A GPU that children train on.

    `number` counts the entries of CUDA_VISIBLE_DEVICES, or all GPUs if it is not set.

    Raises:
        nvml.NVMLError, ImportError: there is no NVML or no such GPU.
    """

    def __init__(self, number: int = 0) -> None:
        self._nvml = load()
        self._nvml.nvmlInit()
        entries = [each for each in list_named() if each]
        self._handle = self._find(entries[number] if number < len(entries) else str(number))
        self._events = read(self._nvml, self._register)

    def close(self) -> None:
        """Leave NVML."""
        if self._events is not None:
            read(self._nvml, lambda: self._nvml.nvmlEventSetFree(self._events))
        self._nvml.nvmlShutdown()

    def memory_bytes(self) -> int:
        """Return the device's memory."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).total)

    def clock_mhz(self, kind: str) -> int | None:
        """Return the present clock, `SM` or `MEM`."""
        return self._read("nvmlDeviceGetClockInfo", getattr(self._nvml, f"NVML_CLOCK_{kind}"))

    def temperature_celsius(self) -> int | None:
        """Return the temperature of the chip."""
        return self._read("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)

    def power_watts(self) -> float | None:
        """Return the power drawn by the board."""
        milliwatts = self._read("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def energy_joules(self) -> float | None:
        """Return the energy drawn since the driver was loaded."""
        millijoules = self._read("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1000

    def clock_reasons(self) -> int | None:
        """Return the bits of the reasons that keep clocks below their highest."""
        return self._read("nvmlDeviceGetCurrentClocksEventReasons")

    def uncorrected_errors(self) -> int | None:
        """Return the memory errors that ECC could not correct since the driver was loaded."""
        nvml = self._nvml
        counter = getattr(nvml, "NVML_VOLATILE_ECC", 0)
        return self._read(
            "nvmlDeviceGetTotalEccErrors", getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1), counter
        )

    def processes(self) -> list[int] | None:
        """Return the ids of the processes that compute on the GPU."""
        found = self._read("nvmlDeviceGetComputeRunningProcesses")
        # Some drivers list numbers that no process has, 0 and 2^32 - 1 (github.com/XuehaiPan/nvitop/issues/75).
        return None if found is None else [process.pid for process in found if 0 < process.pid < 2**31]

    def xids(self) -> list[int] | None:
        """Return the critical errors (Xid) since the last call without waiting, or None if they cannot be read."""
        if self._events is None:
            return None
        found: list[int] = []
        while (event := read(self._nvml, lambda: self._nvml.nvmlEventSetWait_v2(self._events, 0))) is not None:
            found.append(int(event.eventData))
        return found

    def _find(self, wanted: str) -> Any:
        nvml = self._nvml
        if wanted.isdigit():
            return nvml.nvmlDeviceGetHandleByIndex(int(wanted))
        # CUDA takes the beginning of a GPU's UUID, but NVML takes only the whole.
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = read(nvml, lambda index=index: nvml.nvmlDeviceGetHandleByIndex(index))
            uuid = read(nvml, lambda handle=handle: decode_text(nvml.nvmlDeviceGetUUID(handle)))
            if is_named_by(wanted, index, uuid):
                return handle
        return nvml.nvmlDeviceGetHandleByUUID(wanted)

    def _register(self) -> Any:
        events = self._nvml.nvmlEventSetCreate()
        self._nvml.nvmlDeviceRegisterEvents(self._handle, _XID, events)
        return events

    def _read(self, function: str, *arguments: Any) -> Any:
        return read(self._nvml, lambda: getattr(self._nvml, function)(self._handle, *arguments))


def _gpu(nvml: Any, index: int) -> GpuFacts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def clock(kind: str, get: str) -> int | None:
        return read(nvml, lambda: getattr(nvml, get)(handle, getattr(nvml, f"NVML_CLOCK_{kind}")))

    def watts(get: str) -> float | None:
        return read(nvml, lambda: getattr(nvml, get)(handle) / 1000)

    return {
        "index": index,
        "name": decode_text(nvml.nvmlDeviceGetName(handle)),
        "uuid": read(nvml, lambda: decode_text(nvml.nvmlDeviceGetUUID(handle))),
        "memory_bytes": read(nvml, lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        "persistence": read(nvml, lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        "ecc": read(nvml, lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        "mig": read(nvml, lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0])),
        "power_limit_watts": watts("nvmlDeviceGetPowerManagementLimit"),
        "power_limit_default_watts": watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        "sm_clock_mhz": clock("SM", "nvmlDeviceGetClockInfo"),
        "sm_clock_limit_mhz": clock("SM", "nvmlDeviceGetMaxClockInfo"),
        "memory_clock_mhz": clock("MEM", "nvmlDeviceGetClockInfo"),
        "application_clock_mhz": clock("SM", "nvmlDeviceGetApplicationsClock"),
    }


def _cuda_version(number: int) -> str:
    """Return "13.0" for NVML's 13000."""
    return f"{number // 1000}.{number % 1000 // 10}"
