"""The environment variables of a child process, which a framework reads when it starts."""

import os
import sys
from collections.abc import Mapping
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from compare.base import compiler_flags
from compare.base.interface import KnobValues
from compare.machine import cpu

PROBES = "SAMESTEP_PROBES"
"""The variable with the folder for what torch compiles once for a machine, for every program and cache."""

COMPILES = "SAMESTEP_COMPILES"
"""The variable that lets a child import its compiler with its framework."""

BYTECODE = "PYTHONPYCACHEPREFIX"
"""Python's variable with the folder for the bytecode of all modules."""

QUICK_IMPORT = "SAMESTEP_QUICK_IMPORT"
"""The variable that lets a child look for garbage only after its imports."""

_THREADS_PER_VIRTUAL_DEVICE = 128
_THREADS = {"torch": ("MKL_NUM_THREADS", "OMP_NUM_THREADS"), "jax": ("PJRT_NPROC", "NPROC")}
_ALONE = {"torch": "OMP_NUM_THREADS", "jax": "PJRT_NPROC"}
_COMPILERS_OFF = {
    "torch": {"TORCH_COMPILE_DISABLE": ("1",), "TORCHDYNAMO_DISABLE": ("1",)},
    "jax": {"JAX_DISABLE_JIT": ("y", "yes", "t", "true", "on", "1")},
}


def make_child_environment(
    backend: str,
    knobs: KnobValues,
    device: str,
    deterministic: bool,
    inherited: Mapping[str, str],
    memory_fraction: float | None = None,
    devices: int = 1,
    machines: int = 1,
) -> dict[str, str]:
    """Return the variables to add for one child process, merged with the user's.

    - GPUs have NVML's numbers, so a machine with different GPUs watches the one that trains.
    - JAX does not preallocate GPU memory, whatever the user has set, because all contenders of a round are resident
      together (jax.readthedocs.io, GPU memory allocation).
    - JAX's allocator grows to at most `memory_fraction` of a GPU's memory (None: JAX's default, 0.75).
    - On a CPU, JAX sees `devices` devices. Each exchange between them that waits needs a thread, or all wait forever.
      Both sides have the same number of threads on a single device.
    - On several `machines`, XLA's processes do not divide the search for kernels. A process that finds its program in
      its cache would let the others wait for its part.
    """
    added: dict[str, str] = {}
    if device == "cuda":
        added["CUDA_DEVICE_ORDER"] = inherited.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if backend == "torch" and deterministic:
        added["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # torch.use_deterministic_algorithms asks for it
    if backend == "torch" and knobs.get("graph-capture") and knobs.get("parallel") == "ddp":
        added["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # for captured steps (pytorch.org, CUDA semantics)
    if knobs.get("kept-heap"):
        added |= compiler_flags.KEPT_HEAP
    chosen = compiler_flags.find_variables(backend, device, str(knobs.get("compiler-flags")))
    added |= {name: value for name, value in chosen.items() if name != compiler_flags.XLA_FLAGS}
    if device == "cpu" and devices * machines == 1:
        added |= _equalise_threads(backend, inherited)
    if backend == "jax":
        added["JAX_PLATFORMS"] = device
        if inherited.get("JAX_PLATFORM_NAME"):
            added["JAX_PLATFORM_NAME"] = ""  # it would choose another device than --device does
        added["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if memory_fraction is not None and device == "cuda":
            added["XLA_CLIENT_MEM_FRACTION"] = repr(memory_fraction)
            added["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ""  # the old name: jaxlib refuses both together
        if device == "cpu" and devices > 1:
            added["PJRT_NPROC"] = inherited.get("PJRT_NPROC", str(_THREADS_PER_VIRTUAL_DEVICE * devices))
        flags = _list_xla_flags(knobs, device, deterministic, devices, machines)
        flags[:0] = chosen.get(compiler_flags.XLA_FLAGS, "").split()
        if merged := " ".join([*flags, inherited.get("XLA_FLAGS", "")]).strip():
            added["XLA_FLAGS"] = merged
    return added


def _list_xla_flags(knobs: KnobValues, device: str, deterministic: bool, devices: int, machines: int) -> list[str]:
    """Return the flags of XLA for a child with these knobs, besides those of the knob `compiler-flags`."""
    on_gpu, is_split = device == "cuda", devices * machines > 1
    # XLA captures one chain, in which nothing overlaps an exchange.
    captures = knobs.get("graph-capture") and not (is_split and knobs.get("overlap-exchanges"))
    wanted = (
        (on_gpu and not knobs.get("kernel-search", True), "--xla_gpu_autotune_level=0"),
        (not on_gpu and devices > 1, f"--xla_force_host_platform_device_count={devices}"),
        (on_gpu and machines > 1, "--xla_gpu_shard_autotuning=false"),
        (captures, f"--xla_gpu_enable_command_buffer=+CONVOLUTION,{_captured_too(devices, machines)}"),
        (knobs.get("concurrent-kernels"), "--xla_gpu_command_buffer_scheduling_mode=CONCURRENT"),
        (knobs.get("overlap-reduction") and is_split, "--xla_gpu_enable_latency_hiding_scheduler=true"),
        (deterministic and on_gpu, "--xla_gpu_deterministic_ops=true"),
    )
    return [flag for is_wanted, flag in wanted if is_wanted]


def make_explained_environment(
    backend: str, added: Mapping[str, str], device: str, *, captured: bool
) -> dict[str, str]:
    """Return the variables of a child whose step is profiled, besides `added`.

    Cached programs of JAX have no names of layers, unless these belong to the cache's key. Without `captured`, XLA
    starts every kernel by itself, because a captured graph hides which instruction a kernel belongs to.
    """
    if backend != "jax":
        return {}
    own = {"JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "true"}
    if device == "cuda" and not captured:
        own["XLA_FLAGS"] = f"{added.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer=".strip()
    return own


def find_compiler_off(backend: str, inherited: Mapping[str, str]) -> str | None:
    """Return the variable and value that stop a framework from compiling, or None.

    Sources: `torch._dynamo.config` and docs.jax.dev, configuration options.
    """
    meant = {name: (inherited.get(name, ""), off) for name, off in _COMPILERS_OFF.get(backend, {}).items()}
    return next((f"{name}={value}" for name, (value, off) in meant.items() if value.lower() in off), None)


def _captured_too(devices: int, machines: int) -> str:
    """Return what XLA captures besides convolutions: exchanges on several devices of a machine, otherwise loops.

    CUDA does not allow NCCL's captures inside a captured loop (github.com/pytorch/pytorch/issues/180960). XLA then
    starts each turn of the loop from the host as one graph.
    """
    return "+COLLECTIVES" if devices > 1 and machines == 1 else "+WHILE"


def find_overridden_flags(flags: str) -> list[tuple[str, str]]:
    """Return the first and the last text of every flag with two values. The last, the user's own, holds."""
    first, last = dict[str, str](), dict[str, str]()
    for flag in flags.split():
        name = flag.partition("=")[0]
        first.setdefault(name, flag)
        last[name] = flag
    return [(first[name], last[name]) for name in first if first[name] != last[name]]


def make_thread_environment(threads: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that gives a child so many threads if it shares the cores. A user's own value wins.

    Torch's threads spin while they wait for each other. Two children with a thread on every core would spend their time
    waiting for threads that do not run.
    """
    return {"OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS", str(threads))}


def count_threads(inherited: Mapping[str, str]) -> int:
    """Return how many threads each side has on one device: the user's number, or one for each physical core."""
    told = (_read_count(inherited, name) for names in _THREADS.values() for name in names)
    cores = cpu.count_physical_cores()
    return min(next(filter(None, told), cores), cores)


def _equalise_threads(backend: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that gives a side as many threads as the other has.

    By default both have a thread for each physical core, as MKL gives torch. If the user sets the threads of one side,
    the other gets the same number. MKL reads torch's variables in this order. It uses at most one thread for each core,
    so the other side does not get more. Beyond OMP_THREAD_LIMIT, torch would wait for ever.
    """
    own = next((names for side, names in _THREADS.items() if side == backend), ())
    limit = _read_count(inherited, "OMP_THREAD_LIMIT") or sys.maxsize
    told_itself = [count for name in own if (count := _read_count(inherited, name))]
    if not own or (told_itself and (backend == "jax" or told_itself[0] <= limit)):
        return {}
    threads = str(min(count_threads(inherited), limit))
    return {name: threads for name in own if inherited.get(name) or name == _ALONE[backend]}


def _read_count(variables: Mapping[str, str], name: str) -> int | None:
    """Return the positive whole number in a variable, or None. OpenMP's may have one for each level."""
    text = variables.get(name, "").partition(",")[0].strip()
    return int(text) or None if text.isdecimal() else None


def make_matching_environment(backend: str) -> dict[str, str]:
    """Return the variable that leaves a child's programs unoptimised, since matching a pair runs each only once."""
    return {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"} if backend == "jax" else {}


def make_temporary_environment(scratch: Path) -> dict[str, str]:
    """Return the variable that gives a child the run's own folder for temporary files, with mode 0700.

    Frameworks compile and load code in the folder for temporary files. In a shared one, another user could put files
    where they look for their own.
    """
    folder = scratch / "tmp"
    folder.mkdir(mode=0o700, exist_ok=True)
    return {"TMPDIR": str(folder)}


def make_cache_environment(backend: str, folder: Path, kept: Path) -> dict[str, str]:
    """Return the variables that put a backend's persistent cache of compiled programs into `folder`.

    What torch compiles once for a machine goes into `kept`.
    """
    if backend == "jax":
        return {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        PROBES: str(kept / "torch-probes"),
        # Otherwise torch traces a program with a torch.autograd.Function, such as the twins' max-pool, every time.
        "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD": "1",
    }


def make_bytecode_environment(framework: str, kept: Path) -> dict[str, str]:
    """Return the variables that put Python's bytecode into `kept`, if a child could not keep a framework's elsewhere.

    Some images hold no bytecode and forbid Python to write it. Every process would then compile thousands of modules,
    and an import would take three times as long.
    """
    found = find_spec(framework) if framework.isidentifier() else None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return {}
    cache = Path(cache_from_source(found.origin))
    is_writable = os.access(cache.parent if cache.parent.exists() else Path(found.origin).parent, os.W_OK)
    if cache.exists() or (is_writable and not sys.dont_write_bytecode):
        return {}
    return {BYTECODE: str(kept / "python"), "PYTHONDONTWRITEBYTECODE": ""}
