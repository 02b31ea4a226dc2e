"""The software and machine of a run, so that a reader can repeat it. No framework is imported for this."""

import functools
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import psutil

from compare import __version__
from compare.base.errors import shorten
from compare.machine import cpu, known_variables, nvml

DISTRIBUTIONS = (
    "jax",
    "jaxlib",
    *(f"jax-cuda{cuda}-{part}" for cuda in (12, 13) for part in ("plugin", "pjrt")),
    "flax",
    "optax",
    "ml_dtypes",
    "torch",
    "triton",
    *(f"nvidia-{part}-cu{cuda}" for cuda in (12, 13) for part in ("cudnn", "nccl")),
    *(f"nvidia-{part}{cuda}" for cuda in ("-cu12", "") for part in ("cublas", "cuda-runtime", "cuda-nvrtc")),
    "numpy",
    "scipy",
    "scikit-learn",
    "safetensors",
    "psutil",
    "nvidia-ml-py",
    "pytest",
    "pytest-benchmark",
)
VARIABLES = frozenset(
    (
        *("NPROC", "LD_PRELOAD", "GLIBC_TUNABLES", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT"),
        *(
            "TORCH_BLAS_PREFER_HIPBLASLT",
            "TORCH_COMPILE_DISABLE",
            "TORCH_CUDA_ARCH_LIST",
            "TORCH_LINALG_PREFER_CUSOLVER",
        ),
        *("TORCH_SHOW_CPP_STACKTRACES", "TORCH_USE_CUDA_DSA", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        *("PYTORCH_JIT", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NVFUSER_DISABLE", "ATEN_CPU_CAPABILITY"),
        *(
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "CUDA_DEVICE_ORDER",
            "CUDA_HOME",
            "CUDA_LAUNCH_BLOCKING",
            "CUDA_MODULE_LOADING",
        ),
        *("CUDA_VERSION", "CUDA_VISIBLE_DEVICES", "CUDA_CACHE_DISABLE", "CUDA_CACHE_PATH", "CUDA_AUTO_BOOST"),
        *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE"),
        *(
            "NVIDIA_VISIBLE_DEVICES",
            "MALLOC_ARENA_MAX",
            "MALLOC_CONF",
            "MALLOC_MMAP_THRESHOLD_",
            "MALLOC_TRIM_THRESHOLD_",
        ),
    )
)
"""Variables that decide how a run computes. Their values are recorded."""

OWN_PREFIXES = (
    *("XLA_", "JAX_", "PJRT_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_NCCL_", "TORCH_CUDNN_", "TRITON_", "CUDNN_"),
    *("CUBLAS_", "CUBLASLT_", "NCCL_", "OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_"),
)
"""The beginnings of names that only settings of a framework or a library have. Their values are recorded, too."""

PREFIXES = (*OWN_PREFIXES, *known_variables.PREFIXES, "NVIDIA_", "MALLOC_")
"""The beginnings of names that frameworks and their libraries read. Of the others, only the name is recorded."""

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
"""Words in the name of a variable whose value nobody else may see."""

NOT_RECORDED = "(not recorded)"
_LONGEST_VALUE = 5000  # characters: longer texts cannot be read again

_SOURCE = Path(__file__).resolve().parents[2]


class Checkout(TypedDict):
    """The git checkout that samestep runs from. `dirty` is None if git gives no answer."""

    commit: str
    dirty: bool | None


class CpuFacts(TypedDict):
    """The processor, its cores and its load averages over 1, 5 and 15 minutes."""

    model: str | None
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int
    load_average: list[float]


class EnvironmentFacts(TypedDict):
    """The software and the machine of a run. A figure that cannot be read is None."""

    samestep: str
    git: Checkout | None
    python: str
    platform: str
    cpu: CpuFacts
    memory_bytes: int
    nvidia: nvml.NvidiaFacts
    packages: dict[str, str | None]
    variables: dict[str, str]


def describe() -> EnvironmentFacts:
    """Return the software, the machine and its load now, as JSON types."""
    return {
        "samestep": __version__,
        "git": describe_checkout(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {
            "model": read_cpu_model(),
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(logical=True),
            "usable_cores": cpu.count_usable_cores(),
            "load_average": list(psutil.getloadavg()),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "nvidia": nvml.describe(),
        "packages": {name: find_version(name) for name in DISTRIBUTIONS},
        "variables": _variables(os.environ),
    }


def describe_checkout() -> Checkout | None:
    """Return the checkout that samestep runs from, or None without one."""
    if not (_SOURCE / ".git").exists():
        return None
    commit = _git_output(_SOURCE, "rev-parse", "HEAD")
    changes = _git_output(_SOURCE, "status", "--porcelain")
    if not commit:
        return None
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def has_cuda() -> bool:
    """Tell whether a child sees at least one NVIDIA GPU. Starts no CUDA context."""
    return count_visible_gpus() > 0


def explain_no_cuda() -> str:
    """Return why a child sees no NVIDIA GPU."""
    if nvml.list_named() and nvml.describe()["gpus"]:
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} leaves none of this machine's GPUs"
    return "this machine has no NVIDIA GPU that NVML can see"


def count_visible_gpus() -> int:
    """Return how many NVIDIA GPUs a child sees."""
    return len(nvml.list_visible())


def is_installed(distribution_or_module: str) -> bool:
    """Tell whether a distribution or top-level module of that name is installed, without importing it."""
    if find_version(distribution_or_module) is not None:
        return True
    # find_spec imports the parents of a dotted name.
    return distribution_or_module.isidentifier() and importlib.util.find_spec(distribution_or_module) is not None


def find_version(distribution: str) -> str | None:
    """Return the version of an installed distribution (None if it is not installed)."""
    try:
        return importlib.metadata.version(distribution)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in sorted(environment) if name in VARIABLES or _may_decide(name)]
    return {
        name: shorten(environment[name], _LONGEST_VALUE) if _is_public(name, environment[name]) else NOT_RECORDED
        for name in names
    }


def _may_decide(name: str) -> bool:
    return known_variables.is_of_frameworks(name) or name.startswith((*OWN_PREFIXES, "NVIDIA_", "MALLOC_"))


def _is_public(name: str, value: str) -> bool:
    """Tell whether a variable's value may stand in a result, which people publish."""
    is_setting = name in VARIABLES or name.startswith(OWN_PREFIXES)
    has_login = "@" in value and "://" in value  # an address such as https://user:password@host
    return is_setting and not has_login and not any(word in name.upper() for word in SECRET_WORDS)


def _git_output(tree: Path, *arguments: str) -> str | None:
    # No optional locks: describing a run must not get in the way of a git command in the same tree.
    command = ["git", "--no-optional-locks", "-C", str(tree), *arguments]
    # Inside a git hook GIT_DIR and its like name the hook's repository, which need not be this one.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


@functools.cache
def read_cpu_model() -> str:
    """Return the name of the CPU."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
