"""The Triton kernels on a CPU, by Triton's interpreter. Importing this module skips tests where there is no Triton."""

import os
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from compare.kernels.launches import Launch

if "TRITON_INTERPRET" not in os.environ:
    pytest.skip("Triton's interpreter needs the package triton and no GPU", allow_module_level=True)
pytest.importorskip("triton", reason="the kernels need the package triton")
_interpreter: Any = pytest.importorskip("triton.runtime.interpreter")
_patch = _interpreter._patch_lang_tensor
_lock = threading.Lock()  # the interpreter is not made for several threads, and XLA calls back in several


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    """Let a loop count to a tensor: NumPy 2.4 makes no number of an array [1], as the interpreter expects."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


_interpreter._patch_lang_tensor = _patch_lang_tensor


def run(launch: Launch, inputs: Sequence[torch.Tensor], kernels: ModuleType | None = None) -> dict[str, torch.Tensor]:
    """Return a kernel's outputs by name. What it does not write is NaN."""
    outputs = {
        name: torch.full(shape, torch.nan, dtype=inputs[0].dtype if name in launch.narrow else torch.float32)
        for name, shape in launch.outputs.items()
    }
    kernel = launch.function() if kernels is None else getattr(kernels, launch.kernel)
    with _lock:
        kernel[(launch.programs,)](*inputs, *outputs.values(), **launch.constants, num_warps=launch.warps)
    return outputs


def call_from_jax(launch: Launch, inputs: Sequence[jax.Array]) -> list[jax.Array]:
    """Stand in for `jaxbackend.only.kernel_calls.call`, which needs a GPU."""
    shapes: Mapping[str, Any] = {
        name: jax.ShapeDtypeStruct(shape, inputs[0].dtype if name in launch.narrow else jnp.float32)
        for name, shape in launch.outputs.items()
    }

    def on_host(*arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]
        return [output.numpy() for output in run(launch, tensors).values()]

    return list(jax.pure_callback(on_host, list(shapes.values()), *inputs))
