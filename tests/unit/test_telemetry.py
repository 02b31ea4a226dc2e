import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from compare.execution import energy, round_validity, telemetry
from compare.execution.round_validity import Round
from compare.execution.telemetry import RunProcesses, Sample, Telemetry
from compare.machine import nvml
from compare.machine.nvml import SLOWDOWNS
from tests.fakebackend import plans


class NVMLError(Exception):
    pass


def refuse(*_: object) -> Any:
    raise NVMLError("Not Supported")


UUIDS = [f"GPU-{number}d{number}2f937-d72c-4106-c12f-20bd9faed9f6" for number in (1, 2, 3, 4)]
MIG = "MIG-17f2a6c1-5b1e-5c55-9d0b-6f0c2a3b4d5e"


def whole(uuid: str) -> str:
    """The handle of a GPU, or part of one, by its UUID. NVML wants every character of it."""
    handles = {each: f"number {number}" for number, each in enumerate(UUIDS)} | {MIG: "part"}
    return handles.get(uuid) or refuse()


def scripted(**replaced: Any) -> SimpleNamespace:
    """An NVML of GPUs on which this process trains and nothing happens. `replaced` overrides its functions."""
    functions: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(UUIDS),
        "nvmlDeviceGetHandleByIndex": lambda index: f"number {index}" if index < len(UUIDS) else refuse(),
        "nvmlDeviceGetHandleByUUID": whole,
        "nvmlDeviceGetUUID": lambda handle: UUIDS[int(handle.removeprefix("number "))],
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1980 if kind == 1 else 3201,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 41,
        "nvmlDeviceGetPowerUsage": lambda handle: 412_500,
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 1_000_000,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0,
        "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 0,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=os.getpid())],
        "nvmlEventSetCreate": lambda: "events",
        "nvmlDeviceRegisterEvents": lambda handle, kinds, events: None,
        "nvmlEventSetWait_v2": refuse,
        "nvmlEventSetFree": lambda events: None,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVMLError": NVMLError,
    }
    return SimpleNamespace(**(functions | replaced))


def sampled_for(seconds: float, monkeypatch: pytest.MonkeyPatch, binding: Any, count: int = 1) -> Telemetry:
    monkeypatch.setattr(nvml, "load", lambda: binding)
    start = time.monotonic()
    with telemetry.sample(RunProcesses(), lambda: time.monotonic() - start, count) as found:
        time.sleep(seconds)
    return found


def test_what_happens_after_the_last_look_is_seen(monkeypatch: pytest.MonkeyPatch):
    errors = iter([0])
    monkeypatch.setattr(nvml, "load", lambda: scripted(nvmlDeviceGetTotalEccErrors=lambda *_: next(errors, 3)))
    monkeypatch.setattr(telemetry, "INTERVAL_SECONDS", 60.0)
    with telemetry.sample(RunProcesses(), time.monotonic, 1) as found:
        while not found.samples:
            time.sleep(0.001)
    assert [sample.uncorrected_errors for sample in found.samples] == [0, 3]


def longest_interval(found: Telemetry) -> float:
    return max(b.seconds - a.seconds for a, b in itertools.pairwise(found.samples))


def test_samples_come_at_least_every_200_ms_and_cost_under_1_percent(monkeypatch: pytest.MonkeyPatch):
    gc.disable()  # to collect what all other tests have left takes a tenth of a second, in whichever thread it falls
    try:
        # A busy machine may wake the thread late, but not in every try.
        found = min((sampled_for(0.5, monkeypatch, scripted()) for _ in range(5)), key=longest_interval)
    finally:
        gc.enable()
    times = [sample.seconds for sample in found.samples]
    assert longest_interval(found) < 0.25
    assert found.samples[0] == Sample(times[0], 1980, 3201, 41, 412.5, 0, (), 1, 0, ())
    assert found.cost is not None
    assert 0 < found.cost < 0.01
    assert found.listed
    assert found.to_json()["samples"]["foreign"] == [[]] * len(times)


def test_what_the_gpu_does_not_tell_is_none_and_never_zero(monkeypatch: pytest.MonkeyPatch):
    unreadable = {
        name: refuse for name in vars(scripted()) if name.startswith("nvmlDeviceGet") and "Handle" not in name
    }
    found = sampled_for(0.05, monkeypatch, scripted(**unreadable, nvmlEventSetCreate=refuse))
    assert set(vars(found.samples[0]).values()) - {found.samples[0].seconds} == {None}


def test_numbers_that_no_process_has_are_no_foreign_process(monkeypatch: pytest.MonkeyPatch):
    listed = [SimpleNamespace(pid=pid) for pid in (0, os.getpid(), 2**32 - 1)]
    found = sampled_for(0.05, monkeypatch, scripted(nvmlDeviceGetComputeRunningProcesses=lambda handle: listed))
    assert {(sample.own, sample.foreign) for sample in found.samples} == {(1, ())}


def test_a_driver_that_lists_no_processes_has_no_figure_of_one(monkeypatch: pytest.MonkeyPatch):
    binding = scripted(nvmlDeviceGetCount=lambda: 1, nvmlDeviceGetComputeRunningProcesses=refuse)
    monkeypatch.setattr(nvml, "load", lambda: binding)
    assert nvml.read_process_bytes(os.getpid()) is None


def test_without_nvml_there_is_a_reason_and_no_sample(monkeypatch: pytest.MonkeyPatch):
    found = sampled_for(0.0, monkeypatch, scripted(nvmlInit=refuse))
    assert (found.samples, found.reason, found.cost) == ([], "no NVML: Not Supported", None)


def test_an_xid_is_read_once(monkeypatch: pytest.MonkeyPatch):
    waiting = [SimpleNamespace(eventData=79), SimpleNamespace(eventData=48)]
    found = sampled_for(
        0.15, monkeypatch, scripted(nvmlEventSetWait_v2=lambda events, timeout: waiting.pop() if waiting else refuse())
    )
    assert [sample.xids for sample in found.samples][:2] == [(48, 79), ()]


def test_every_gpu_that_is_trained_on_is_watched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    hot = {"number 3": 41, "number 1": 77}
    binding = scripted(nvmlDeviceGetTemperature=lambda handle, sensor: hot[handle])
    found = sampled_for(0.05, monkeypatch, binding, count=2)
    assert [{sample.temperature_celsius for sample in each.samples} for each in found.each] == [{41}, {77}]
    assert Telemetry.of_json(found.to_json()).to_json() == found.to_json()


def test_what_happens_on_any_gpu_voids_the_rounds_that_it_touches():
    throttled = [Sample(tick / 10, clock_reasons=0x40, foreign=(), own=1) for tick in range(12, 19)]
    found = round_validity.find_void_rounds(ROUNDS, Telemetry(QUIET, others=[Telemetry(throttled)]), "cuda")
    assert dict(found) == {1: "GPU 1: hardware thermal slowdown"}
    gpus = [range(1, 2), range(1), range(1, 2), range(1), range(1, 2)]
    rounds = [replace(each, gpus=used) for each, used in zip(ROUNDS, gpus, strict=True)]
    assert dict(round_validity.find_void_rounds(rounds, Telemetry(QUIET, others=[Telemetry(throttled)]), "cuda")) == {}
    rounds[1].gpus = range(2)
    assert dict(
        round_validity.find_void_rounds(rounds, Telemetry(QUIET, others=[Telemetry(throttled)]), "cuda")
    ) == dict(found)


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,0", ["2", "0"]),
        ("-1", []),
        ("", []),
        ("7", []),
        ("0,-1,1", ["0"]),
        ("0,0", ["0"]),
        ("GPU-4d,1", ["GPU-4d", "1"]),
        ("GPU-5", []),
        ("G", []),
        ("MIG-17", ["MIG-17"]),
    ],
)
def test_the_gpus_that_children_see(variable: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch):
    gpus = [{"uuid": f"GPU-{number}d{number}"} for number in (1, 2, 3, 4)]
    monkeypatch.setattr(nvml, "describe", lambda: {"gpus": gpus})
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert nvml.list_visible() == seen


@pytest.mark.parametrize("variable", ["0", "GPU-4d", "MIG-17"])
def test_no_variable_makes_a_gpu_visible_that_is_not_there(variable: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nvml, "describe", lambda: {"gpus": []})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert nvml.list_visible() == []


def test_of_a_process_on_several_gpus_the_one_counts_where_it_holds_most(monkeypatch: pytest.MonkeyPatch):
    listed = {"number 0": [(7, 100), (8, 5)], "number 1": [(7, 900)]}
    binding = scripted(
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in listed[handle]
        ],
    )
    monkeypatch.setattr(nvml, "load", lambda: binding)
    assert [nvml.read_process_bytes(pid) for pid in (7, 8, 9)] == [900, 5, None]


@pytest.mark.parametrize(
    ("variable", "handle"),
    [
        (None, "number 0"),
        ("2,0", "number 2"),
        ("GPU-4d", "number 3"),
        (UUIDS[1], "number 1"),
        ("GPU-", "number 0"),
        (MIG, "part"),
        ("", "number 0"),
    ],
)
def test_the_gpu_is_the_one_that_children_see(variable: str | None, handle: str, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr(
        nvml, "load", lambda: scripted(nvmlDeviceGetPowerUsage=lambda handle: asked.append(handle) or 1)
    )
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    nvml.Device().power_watts()
    assert asked == [handle]


@pytest.mark.parametrize("variable", ["GPU-5", "MIG-17", "8"])
def test_a_gpu_that_nvml_does_not_know_is_not_watched(variable: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert sampled_for(0.0, monkeypatch, scripted()).reason == "no NVML: Not Supported"


def test_a_gpu_named_by_the_beginning_of_its_uuid_is_watched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-3d32f937")
    found = sampled_for(0.05, monkeypatch, scripted())
    assert found.reason is None
    assert found.samples[0].temperature_celsius == 41


def test_a_child_and_what_it_starts_are_of_the_family_and_others_are_not():
    command = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        family = RunProcesses()
        assert not family(child.pid)
        family.add(child.pid)
        assert family(os.getpid())
        assert family(child.pid)
        assert family(grandchild)
        assert not family(os.getppid())
        assert not family(2**22 + 1)
        os.killpg(child.pid, 9)
    assert family(grandchild), "a process that has ended was still ours"


def test_what_is_only_in_this_process_s_group_is_not_of_the_family():
    code = (
        "import subprocess; from compare.execution.telemetry import RunProcesses; "
        "other = subprocess.Popen(['sleep', '60']); print(RunProcesses()(other.pid)); other.kill()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, start_new_session=True, cwd=plans.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


QUIET = [Sample(tick / 10, clock_reasons=0, foreign=(), own=1, uncorrected_errors=7, xids=()) for tick in range(50)]
ROUNDS = [Round([(number + 0.2, number + 0.5), (number + 0.5, number + 0.8)]) for number in range(5)]


def scripted_voids(change: dict[str, Any], start: float, end: float, device: str = "cuda") -> dict[int, str]:
    samples = [Sample(**(vars(each) | (change if start <= round(each.seconds, 3) <= end else {}))) for each in QUIET]
    return dict(round_validity.find_void_rounds(ROUNDS, Telemetry(samples), device))


@pytest.mark.parametrize(("bit", "name"), SLOWDOWNS.items())
def test_a_slowdown_voids_the_rounds_that_it_touches(bit: int, name: str):
    assert scripted_voids({"clock_reasons": bit | 0x4}, 1.7, 3.1) == {1: name, 2: name}


def test_a_power_cap_or_an_idle_clock_voids_nothing():
    assert scripted_voids({"clock_reasons": 0x4 | 0x1}, 0.0, 5.0) == {}


def test_a_power_cap_is_seen_from_when_one_asks():
    samples = [Sample(float(tick), clock_reasons=0x4 if tick == 2 else 0x1) for tick in range(5)]
    assert Telemetry(samples).is_power_capped(2.0)
    assert not Telemetry(samples).is_power_capped(2.5)
    assert Telemetry(others=[Telemetry(samples)]).is_power_capped(0.0), "any GPU of the run counts"
    assert not Telemetry([Sample(3.0)]).is_power_capped(0.0), "NVML may not know"


def test_a_foreign_process_voids_the_rounds_that_it_touches():
    assert scripted_voids({"foreign": (4711, 12)}, 2.3, 2.3) == {2: "foreign process 12, 4711 on the GPU"}
    assert scripted_voids({"foreign": (4711,)}, 2.85, 3.15) == {}, "it was gone before the next block began"


def test_where_nvml_hides_processes_none_is_called_foreign():
    samples = [Sample(**(vars(each) | {"own": 0, "foreign": (4711,)})) for each in QUIET]
    assert dict(round_validity.find_void_rounds(ROUNDS, Telemetry(samples), "cuda")) == {}


def test_an_ecc_increment_voids_the_round_in_which_the_counter_rose():
    assert scripted_voids({"uncorrected_errors": 9}, 3.5, 5.0) == {3: "2 uncorrected memory errors (ECC)"}
    # Between two looks: it may have come in the last block, which ended at 3.8.
    assert scripted_voids({"uncorrected_errors": 8}, 3.9, 5.0) == {3: "1 uncorrected memory error (ECC)"}
    assert scripted_voids({"uncorrected_errors": 8}, 4.0, 5.0) == {}
    assert scripted_voids({"uncorrected_errors": 0}, 3.5, 5.0) == {}, "a counter that begins again counts nothing"


def test_an_xid_voids_the_round_that_it_came_in():
    assert scripted_voids({"xids": (79,)}, 0.4, 0.4) == {0: "Xid 79"}


def test_two_reasons_are_both_told():
    assert scripted_voids({"xids": (79,), "foreign": (3,)}, 0.4, 0.4) == {0: "foreign process 3 on the GPU; Xid 79"}


def test_on_a_cpu_other_programs_void_a_round_and_the_gpu_does_not_matter():
    rounds = [Round([(0.0, 1.0)], cores) for cores in (0.0, 0.25, 0.26, None)]
    found = round_validity.find_void_rounds(rounds, Telemetry([Sample(0.5, xids=(79,))]), "cpu")
    assert dict(found) == {2: "other programs kept 0.26 cores busy"}


def test_on_a_cpu_contenders_that_were_not_timed_void_a_round():
    rounds = [Round([(0.0, 1.0)], 0.3, cores) for cores in (0.25, 0.26, None)]
    found = round_validity.find_void_rounds(rounds, Telemetry([]), "cpu")
    assert found == {
        0: "other programs kept 0.30 cores busy",
        1: "other programs kept 0.30 cores busy; contenders that were not timed kept 0.26 cores busy",
        2: "other programs kept 0.30 cores busy",
    }


class Board:
    """GPUs on a clock of their own. Counters move every 0.1 s, and `idle` has the watts of each second at rest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, idle: Sequence[float], busy: Sequence[float]) -> None:
        self.seconds, self._idle, self._busy, self._since = 0.0, iter(idle), busy, 0.0
        self._watts, self._millijoules = 0.0, [1e6 for _ in busy]
        binding = scripted(nvmlDeviceGetTotalEnergyConsumption=self._read)
        monkeypatch.setattr(nvml, "load", lambda: binding)
        monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=lambda: self.seconds, sleep=self._rest))

    def _read(self, handle: str) -> float:
        return self._millijoules[int(handle.removeprefix("number "))]

    def _pass(self, seconds: float, watts: Sequence[float]) -> None:
        self.seconds += seconds
        while self.seconds - self._since > 0.0999:
            self._since += 0.1
            self._millijoules = [old + 100 * power for old, power in zip(self._millijoules, watts, strict=True)]

    def _rest(self, window: float) -> None:
        self._watts = next(self._idle, self._watts) if window >= 0.5 else self._watts
        for _ in range(round(window / 0.005)):
            self._pass(0.005, [self._watts] * len(self._busy))

    def train(self, look: energy.Look) -> int:
        """Train 250 steps in two seconds, between two moments at which no counter moves."""
        for _ in range(400):
            self._pass(0.005, self._busy)
            look()
        return 250


def counted(
    monkeypatch: pytest.MonkeyPatch, idle: Sequence[float], busy: float = 2500, known: float | None = None
) -> energy.Energy:
    """What is measured on one GPU that draws so many watts at rest, then so many while it trains."""
    board = Board(monkeypatch, idle, [busy])
    return energy.measure(board.train, 1, known)


def test_energy_is_that_of_all_gpus_together(monkeypatch: pytest.MonkeyPatch):
    board = Board(monkeypatch, [100, 100], [1500, 1000])
    found = energy.measure(board.train, 2)
    assert (found.joules_per_step, found.idle_watts) == (pytest.approx(20, rel=5e-3), pytest.approx(200))


def test_energy_is_the_power_between_updates_over_the_steps(monkeypatch: pytest.MonkeyPatch):
    found = counted(monkeypatch, [120, 120])
    assert (found.joules_per_step, found.idle_watts) == (pytest.approx(20, rel=5e-3), pytest.approx(120))
    assert (found.steps, found.seconds, found.reason) == (250, pytest.approx(2.0), None)


def test_a_known_idle_power_is_not_measured_again(monkeypatch: pytest.MonkeyPatch):
    found = counted(monkeypatch, [], known=90.0)
    assert (found.joules_per_step, found.idle_watts) == (pytest.approx(20, rel=5e-3), 90.0)


def test_idle_power_is_that_of_a_gpu_that_has_come_to_rest(monkeypatch: pytest.MonkeyPatch):
    assert counted(monkeypatch, [420, 260, 150, 124, 122]).idle_watts == pytest.approx(122)


def test_idle_power_that_never_settles_is_not_told(monkeypatch: pytest.MonkeyPatch):
    falling = [1000 * 0.9**window for window in range(50)]
    found = counted(monkeypatch, falling)
    assert (found.idle_watts, found.joules_per_step) == (None, pytest.approx(20, rel=5e-3))


def test_energy_of_a_counter_that_does_not_move_has_its_reason(monkeypatch: pytest.MonkeyPatch):
    found = counted(monkeypatch, [120, 120], busy=0)
    assert found.joules_per_step is None
    assert found.reason == "the energy counter did not change twice during the training"


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        (scripted(nvmlInit=refuse), "no NVML: Not Supported"),
        (scripted(nvmlDeviceGetTotalEnergyConsumption=refuse), "this GPU has no energy counter"),
    ],
)
def test_energy_that_is_not_told_has_its_reason(binding: Any, reason: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nvml, "load", lambda: binding)
    assert energy.measure(lambda look: 1, 1) == energy.Energy(reason=reason)
