import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compare import __version__
from compare.machine import environment, memory
from compare.machine import nvml as nvml_module


class NVMLError(Exception):
    pass


def refuse(*_: object) -> Any:
    raise NVMLError("Not Supported")


def scripted_nvml(count: int = 1, **replaced: Any) -> SimpleNamespace:
    """An NVML that answers as one does on a machine with `count` H200s; `replaced` overrides its functions."""
    calls: list[str] = []
    functions: dict[str, Any] = {
        "nvmlInit": lambda: calls.append("init"),
        "nvmlShutdown": lambda: calls.append("shutdown"),
        "nvmlDeviceGetCount": lambda: count,
        "nvmlSystemGetDriverVersion": lambda: b"580.159.04",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=150_754_820_096),
        "nvmlDeviceGetPersistenceMode": lambda handle: 1,
        "nvmlDeviceGetEccMode": lambda handle: [1, 1],
        "nvmlDeviceGetMigMode": lambda handle: [0, 0],
        "nvmlDeviceGetPowerManagementLimit": lambda handle: 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: 700_000,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 345 if kind == "sm" else 3201,
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetApplicationsClock": lambda handle, kind: 1980,
        "NVML_CLOCK_SM": "sm",
        "NVML_CLOCK_MEM": "memory",
        "NVMLError": NVMLError,
        "calls": calls,
    }
    return SimpleNamespace(**(functions | replaced))


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = scripted_nvml(count=2)
    monkeypatch.setattr(nvml_module, "load", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia = environment.describe()["nvidia"]
    assert (nvidia["driver"], nvidia["cuda_driver"]) == ("580.159.04", "13.1")
    assert [gpu["index"] for gpu in nvidia["gpus"]] == [0, 1]
    assert nvidia["gpus"][1] == {
        "index": 1,
        "name": "NVIDIA H200",
        "uuid": "GPU-1",
        "memory_bytes": 150_754_820_096,
        "persistence": True,
        "ecc": True,
        "mig": False,
        "power_limit_watts": 700.0,
        "power_limit_default_watts": 700.0,
        "sm_clock_mhz": 345,
        "sm_clock_limit_mhz": 1980,
        "memory_clock_mhz": 3201,
        "application_clock_mhz": 1980,
    }
    assert "reason" not in nvidia
    assert nvml.calls == ["init", "shutdown"]
    assert environment.has_cuda()


def test_what_a_gpu_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = scripted_nvml(nvmlDeviceGetPowerManagementLimit=refuse, nvmlDeviceGetMigMode=refuse)
    del nvml.nvmlDeviceGetApplicationsClock
    monkeypatch.setattr(nvml_module, "load", lambda: nvml)
    (gpu,) = environment.describe()["nvidia"]["gpus"]
    assert gpu["power_limit_watts"] is gpu["mig"] is gpu["application_clock_mhz"] is None
    assert gpu["sm_clock_mhz"] == 345


@pytest.mark.parametrize(
    ("device", "visible", "divided", "size"),
    [
        ("cuda", None, (0, 0), 2**30),
        ("cuda", "1,0", (0, 0), 2**31),
        ("cuda", "GPU-1", (0, 0), 2**31),
        ("cuda", "MIG-1", (0, 0), None),
        ("cuda", "", (0, 0), None),
        ("cuda", None, (1, 1), None),
        ("cpu", None, (0, 0), None),
    ],
)
def test_the_memory_of_the_gpu_that_is_trained_on_is_known(
    monkeypatch: pytest.MonkeyPatch, device: str, visible: str | None, divided: tuple[int, int], size: int | None
) -> None:
    nvml = scripted_nvml(
        count=2,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=2 ** (30 + handle)),
        nvmlDeviceGetMigMode=lambda handle: divided,
    )
    monkeypatch.setattr(nvml_module, "load", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert memory.read_device_bytes(device) == size


@pytest.mark.parametrize(
    ("nvml", "reason", "calls"),
    [
        pytest.param(scripted_nvml(nvmlInit=refuse), "NVML: Not Supported", [], id="no driver"),
        pytest.param(scripted_nvml(count=0), "NVML sees no GPU", ["init", "shutdown"], id="no GPU"),
        pytest.param(
            scripted_nvml(nvmlDeviceGetHandleByIndex=refuse), "NVML: Not Supported", ["init", "shutdown"], id="GPU lost"
        ),
    ],
)
def test_absent_gpu_has_its_reason(
    monkeypatch: pytest.MonkeyPatch, nvml: SimpleNamespace, reason: str, calls: list[str]
) -> None:
    monkeypatch.setattr(nvml_module, "load", lambda: nvml)
    nvidia = environment.describe()["nvidia"]
    assert (nvidia["gpus"], nvidia.get("reason")) == ([], reason)
    assert nvml.calls == calls
    assert not environment.has_cuda()


def test_absent_binding_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise ImportError("no pynvml")

    monkeypatch.setattr(nvml_module, "load", load)
    assert environment.describe()["nvidia"].get("reason") == "nvidia-ml-py cannot be imported: no pynvml"


def test_description_is_json_and_complete() -> None:
    described = environment.describe()
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert described["samestep"] == __version__
    assert described["memory_bytes"] > 2**20
    assert described["cpu"]["model"]
    assert (described["cpu"]["logical_cores"] or 0) >= described["cpu"]["usable_cores"] >= 1
    assert len(described["cpu"]["load_average"]) == 3
    assert described["packages"]["numpy"] == environment.find_version("numpy")


def test_only_the_frameworks_variables_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    monkeypatch.setenv("SOME_TOKEN", "secret")
    variables = environment.describe()["variables"]
    assert variables["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
    assert variables["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] == "1"
    assert "SOME_TOKEN" not in variables


def test_git_commit_and_dirty_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(environment, "_SOURCE", tmp_path)
    assert environment.describe()["git"] is None
    git("init", "-q")
    assert environment.describe()["git"] is None
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert environment.describe()["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "new").touch()
    commit = git("rev-parse", "HEAD")
    assert environment.describe()["git"] == {"commit": commit, "dirty": True}
    git("init", "-q", "other")
    git("-C", "other", "commit", "-q", "--allow-empty", "-m", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))  # as in a hook of that one
    assert environment.describe()["git"] == {"commit": commit, "dirty": True}


def test_installed_knows_modules_and_distributions() -> None:
    assert environment.is_installed("numpy")
    assert environment.is_installed("scikit-learn")
    assert environment.is_installed("sklearn")
    assert not environment.is_installed("no_such_module")
    assert not environment.is_installed("json.tool")
    assert not environment.is_installed("")
