"""The optimisation switches: one name each, what it does in either framework, and the named tunings made of them.

A tuning is written NAME or NAME+KNOB[=VALUE]+..., where NAME is `stock`, `compiled` or `tuned` and may be left out
(then the knobs start from `stock`). A knob that a framework has no switch for is refused by name, never ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.interface import Refused

Value = bool | int


@dataclass(frozen=True)
class Knob:
    """One switch. `mechanism` says what it does per backend; a backend in `fixed` has no switch, and why."""

    name: str
    summary: str
    default: Value
    mechanism: Mapping[str, str]
    fixed: Mapping[str, str]


_ALL = (
    Knob(
        "compile",
        "compile the training step",
        False,
        {"jax": "jax.jit of the whole step (off: op by op)", "torch": "torch.compile of model and loss, default mode"},
        {},
    ),
    Knob(
        "channels-last",
        "keep images and kernels in NHWC memory order",
        False,
        {"torch": "model and images .to(memory_format=torch.channels_last)"},
        {"jax": "always NHWC"},
    ),
    Knob(
        "fused-optimizer",
        "update all parameters in one kernel",
        False,
        {"torch": "optimizer(fused=True)"},
        {"jax": "the update is inside the jitted step"},
    ),
    Knob(
        "donation",
        "let the step overwrite its input state",
        False,
        {"jax": "jax.jit(donate_argnums=0)"},
        {"torch": "updates are always in place"},
    ),
    Knob(
        "steps-per-dispatch",
        "training steps started by one call from Python",
        1,
        {"jax": "lax.scan over the steps", "torch": "that many steps captured in one CUDA graph"},
        {},
    ),
    Knob(
        "graph-capture",
        "replay the step as a CUDA graph",
        False,
        {
            "jax": "XLA command buffers, convolutions and loops included",
            "torch": "torch.cuda.graph around the whole step",
        },
        {},
    ),
    Knob(
        "kernel-search",
        "time several convolution kernels and keep the fastest",
        False,
        {"torch": "torch.backends.cudnn.benchmark"},
        {"jax": "XLA autotunes at its default level"},
    ),
)

KNOBS: Mapping[str, Knob] = {knob.name: knob for knob in _ALL}

TUNINGS: Mapping[str, str] = {
    "stock": "what the framework's own tutorial gives",
    "compiled": "stock and the compiler",
    "tuned": "the fastest known for the workload and device",
}

# Flax's tutorials jit the training step, so JAX's `stock` is already compiled; `compiled` adds donated buffers.
_GIVEN: Mapping[tuple[str, str], Mapping[str, Value]] = {
    ("jax", "stock"): {"compile": True},
    ("jax", "compiled"): {"compile": True, "donation": True},
    ("torch", "stock"): {},
    ("torch", "compiled"): {"compile": True},
}

_EVERY = "every other workload"
_JAX_GRAPH: Mapping[str, Value] = {"compile": True, "donation": True, "graph-capture": True}
_TORCH_GRAPH: Mapping[str, Value] = {
    "compile": True,
    "channels-last": True,
    "fused-optimizer": True,
    "graph-capture": True,
    "kernel-search": True,
}

# The fastest known, by (backend, device, workload), each with where it was measured. A scan of convolutions is slower
# than single steps on XLA's CPU backend, a compiled model slower than eager kernels with PyTorch's.
_TUNED: Mapping[tuple[str, str, str], tuple[Mapping[str, Value], str]] = {
    ("jax", "cpu", _EVERY): ({"compile": True, "donation": True}, "docs/measurements.md"),
    ("torch", "cpu", _EVERY): ({"channels-last": True, "fused-optimizer": True}, "docs/measurements.md"),
    ("jax", "cuda", _EVERY): ({**_JAX_GRAPH, "steps-per-dispatch": 20}, "benchmarks/h200"),
    ("torch", "cuda", _EVERY): ({**_TORCH_GRAPH, "steps-per-dispatch": 20}, "benchmarks/h200"),
    # A step of tens of milliseconds hides its launch, and a program of many such steps only takes longer to compile.
    ("jax", "cuda", "resnet50"): ({"compile": True, "donation": True}, "benchmarks/h200"),
    ("torch", "cuda", "resnet50"): (_TORCH_GRAPH, "benchmarks/h200"),
}


def resolve(backend: str, tuning: str, device: str, workload: str) -> dict[str, Value]:
    """Return the value of every knob that `backend` has, for a tuning as a user writes it, on `cpu` or `cuda`.

    `tuned` differs from workload to workload.

    Raises:
        Refused: for an unknown tuning, knob or value, or a knob that the backend or device has no switch for.
    """
    head, *rest = tuning.split("+")
    if head not in TUNINGS:
        head, rest = "stock", [head, *rest]
    values: dict[str, Value] = {knob.name: knob.default for knob in _ALL if backend not in knob.fixed}
    values |= _named(backend, head, device, workload)
    given: set[str] = set()
    for item in rest:
        name, _, text = item.partition("=")
        knob = KNOBS.get(name)
        if knob is None:
            raise Refused(
                f"unknown tuning or knob {name!r} in {backend}:{tuning}; allowed: {', '.join(TUNINGS)}, or knobs "
                f"joined by '+' out of {', '.join(KNOBS)}"
            )
        if name in given:
            raise Refused(f"{backend}:{tuning} gives {name!r} twice; allowed: each knob once")
        given.add(name)
        if backend in knob.fixed:
            raise Refused(f"{backend}:{tuning}: {backend} has no switch {name!r} ({knob.fixed[backend]})")
        values[name] = _value(knob, text, f"{backend}:{tuning}")
    _check_device(backend, tuning, device, values)
    return values


def _named(backend: str, name: str, device: str, workload: str) -> Mapping[str, Value]:
    if name != "tuned":
        return _GIVEN.get((backend, name), {})
    settings, _ = _TUNED.get((backend, device, workload)) or _TUNED.get((backend, device, _EVERY)) or ({}, "")
    return settings


def _value(knob: Knob, text: str, where: str) -> Value:
    if isinstance(knob.default, bool):
        if text not in ("", "on", "off"):
            raise Refused(f"{where}: {knob.name}={text} is not allowed; allowed: on, off")
        return text != "off"
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 1000 or len(text) > 4:
        raise Refused(f"{where}: {knob.name}={text} is not allowed; allowed: a whole number from 1 to 1000")
    return int(text)


def _check_device(backend: str, tuning: str, device: str, values: Mapping[str, Value]) -> None:
    where = f"{backend}:{tuning}"
    if device == "cpu" and values.get("graph-capture"):
        raise Refused(f"{where}: graph-capture needs --device cuda")
    if device == "cpu" and values.get("kernel-search"):
        raise Refused(f"{where}: kernel-search needs --device cuda")
    several = values.get("steps-per-dispatch", 1) != 1
    if backend == "torch" and several and not values.get("graph-capture"):
        raise Refused(f"{where}: steps-per-dispatch above 1 needs graph-capture (and --device cuda) in torch")
    if backend == "jax" and several and not values.get("compile"):
        raise Refused(f"{where}: steps-per-dispatch above 1 needs compile in jax")
    if backend == "jax" and values.get("donation") and not values.get("compile"):
        raise Refused(f"{where}: donation needs compile in jax")


def child_environment(
    backend: str,
    knobs: Mapping[str, Any],
    device: str,
    deterministic: bool,
    inherited: Mapping[str, str],
    memory_fraction: float | None = None,
) -> dict[str, str]:
    """Return the variables to add for one child process, merged with what the user has set.

    No JAX process may claim the device's memory beforehand, since all contenders of a round are resident together
    (jax.readthedocs.io, GPU memory allocation); a user's own setting wins. `memory_fraction` of a GPU's memory is then
    the most that JAX's allocator grows to (None: JAX's default, 0.75).
    """
    added: dict[str, str] = {}
    flags: list[str] = []
    if backend == "torch" and deterministic:
        added["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # torch.use_deterministic_algorithms asks for it
    if backend == "jax":
        added["JAX_PLATFORMS"] = device
        added["XLA_PYTHON_CLIENT_PREALLOCATE"] = inherited.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if memory_fraction is not None and device == "cuda":
            added["XLA_CLIENT_MEM_FRACTION"] = repr(memory_fraction)
            added["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ""  # the old name; jaxlib refuses both
        if knobs.get("graph-capture"):
            flags.append("--xla_gpu_enable_command_buffer=+CONVOLUTION,+WHILE")
        if deterministic and device == "cuda":
            flags.append("--xla_gpu_deterministic_ops=true")
        if flags:
            added["XLA_FLAGS"] = " ".join([*flags, inherited.get("XLA_FLAGS", "")]).strip()
    return added


def cache_environment(backend: str, folder: Path) -> dict[str, str]:
    """Return the variables that put a backend's persistent cache of compiled programs into `folder`."""
    if backend == "jax":
        return {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"), "TRITON_CACHE_DIR": str(folder / "triton")}
