"""Flags that JAX and XLA read once for all programs. In the environment, a flag's last value counts."""

import os
from typing import Any

import jax
from jax._src import xla_bridge

_ASYNCHRONOUS = "jax_cpu_enable_async_dispatch"


def excess_precision() -> bool:
    """Tell whether XLA may leave out roundings between fused operations. It may unless its flag forbids it."""
    return _values("xla_allow_excess_precision")[-1:] not in (["false"], ["0"])


def deterministic(device: Any) -> bool:
    """Tell whether XLA is deterministic. It is on a CPU, and on a GPU if its flag says so."""
    return device.platform == "cpu" or _is_on("xla_gpu_deterministic_ops")


def captures_convolutions(device: Any) -> bool:
    """Tell whether XLA captures convolutions in command buffers. It does on a GPU if its flag names them.

    Names with a sign change the set of earlier names. Names without a sign replace it.
    """
    kinds = set[str]()
    for value in _values("xla_gpu_enable_command_buffer"):
        names = value.upper().split(",")
        added = {name[1:] for name in names if name.startswith("+")}
        removed = {name[1:] for name in names if name.startswith("-")}
        kinds = (kinds | added) - removed if added or removed else set(names)
    return device.platform != "cpu" and "CONVOLUTION" in kinds


def runs_concurrently(device: Any) -> bool:
    """Tell whether kernels of a command buffer wait only for their inputs. They do on a GPU if its flag says so."""
    return device.platform != "cpu" and _values("xla_gpu_command_buffer_scheduling_mode")[-1:] == ["CONCURRENT"]


def hides_latency(device: Any) -> bool:
    """Tell whether XLA's latency-hiding scheduler orders programs. It does on a GPU if its flag says so."""
    return device.platform != "cpu" and _is_on("xla_gpu_enable_latency_hiding_scheduler")


def searches_kernels(device: Any, *, wanted: bool) -> bool:
    """Tell whether XLA times kernels. It does on a GPU if its flag says so, or without a flag if `wanted`."""
    levels = _values("xla_gpu_autotune_level")
    return device.platform != "cpu" and (levels[-1] != "0" if levels else wanted)


def choose_dispatch(*, inline: bool) -> None:
    """Let programs of a CPU run in their caller's thread, or in another one. JAX reads this with its first device."""
    if not xla_bridge.backends_are_initialized():
        jax.config.update(_ASYNCHRONOUS, not inline)


def dispatches_inline(device: Any) -> bool:
    """Tell whether programs run in their caller's thread. Small ones do on a CPU, if `choose_dispatch` says so."""
    return device.platform == "cpu" and not jax.config.values[_ASYNCHRONOUS]


def _is_on(flag: str) -> bool:
    return _values(flag)[-1:] in (["true"], ["1"], [""])


def _values(flag: str) -> list[str]:
    """Return all values of a flag in order, first samestep's and then the user's."""
    settings = [setting.partition("=") for setting in os.environ.get("XLA_FLAGS", "").split()]
    return [value.strip("'\"") for name, _, value in settings if name == f"--{flag}"]
