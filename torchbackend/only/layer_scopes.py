"""The layers of a model as scopes: in a profiler's events, and by node of the graphs that a compiler gets."""

import importlib
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from compare.base.profiles import LAYER_PREFIX


@contextmanager
def watch_layers(
    layers: Mapping[str, nn.Module], enter: Callable[[str], object], leave: Callable[[str], object]
) -> Generator[None]:
    """Call `enter(name)` and `leave(name)` around every call of these modules while the context lasts."""

    def before(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            enter(name)

        return hook

    def after(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            leave(name)

        return hook

    with ExitStack() as stack:
        for name, module in layers.items():
            stack.enter_context(module.register_forward_pre_hook(before(name)))
            stack.enter_context(module.register_forward_hook(after(name)))
        yield


@contextmanager
def named(layers: Mapping[str, nn.Module]) -> Generator[None]:
    """Show every call of these modules in the profiler while the context lasts."""
    open_scopes: list[Any] = []

    def enter(name: str) -> None:
        scope = torch.profiler.record_function(f"{LAYER_PREFIX}{name}")
        scope.__enter__()
        open_scopes.append(scope)

    def leave(name: str) -> None:
        del name
        open_scopes.pop().__exit__(None, None, None)

    with watch_layers(layers, enter, leave):
        yield


@contextmanager
def nvtx_ranges(layers: Mapping[str, nn.Module]) -> Generator[None]:
    """Show the layers and torch's operations as NVTX ranges while the context lasts, for Nsight Systems.

    In a compiled step there are no calls of layers. Its kernels are named after their operations.
    """

    def enter(name: str) -> None:
        torch.cuda.nvtx.range_push(f"{LAYER_PREFIX}{name}")

    def leave(name: str) -> None:
        del name
        torch.cuda.nvtx.range_pop()

    with watch_layers(layers, enter, leave), torch.autograd.profiler.emit_nvtx():
        yield


def is_under_nsight() -> bool:
    """Tell whether Nsight Systems profiles this process. It sets this variable in every process that it starts."""
    return "NSYS_PROFILING_SESSION_ID" in os.environ and torch.cuda.is_available()


class Graphs:
    """Keeps the layer of every node of the graphs that TorchInductor gets, from now on in this process."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self.nodes: dict[str, str] = {}
        self._names = {str(id(module)): name for name, module in layers.items()}
        compiler: Any = importlib.import_module("torch._inductor.compile_fx")
        plain = compiler.compile_fx

        def compile_fx(graph: Any, *arguments: Any, **options: Any) -> Any:
            self._keep(graph)
            return plain(graph, *arguments, **options)

        mock.patch.object(compiler, "compile_fx", compile_fx).start()  # for the life of this process

    def _keep(self, graph: Any) -> None:
        inner: dict[str, str | None] = {}
        for node in graph.graph.nodes:
            scopes = [self._names[key] for key in node.meta.get("nn_module_stack", {}) if key in self._names]
            if not scopes:
                continue
            self.nodes[node.name] = scopes[-1]
            body: Any = getattr(graph, str(node.target), None)
            if node.op == "get_attr" and hasattr(body, "graph"):
                # The body of a torch.autograd.Function. Two bodies may use one name, which then tells nothing.
                for name in (each.name for each in body.graph.nodes if each.op.startswith("call")):
                    inner[name] = scopes[-1] if inner.get(name, scopes[-1]) == scopes[-1] else None
        for name, layer in inner.items():
            if layer is not None:
                self.nodes.setdefault(name, layer)


def compiled_modules() -> list[Any]:
    """Return the Python modules that TorchInductor has written for the programs of this process."""
    cache: Any = importlib.import_module("torch._inductor.codecache")
    return [module for module in cache.PyCodeCache.modules if hasattr(module, "call")]


@contextmanager
def named_cpu_kernels() -> Generator[None]:
    """Show every kernel that TorchInductor has compiled for a CPU in the profiler while the context lasts."""

    def show(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def shown(*arguments: Any) -> Any:
            with torch.profiler.record_function(name):
                return kernel(*arguments)

        return shown

    with ExitStack() as stack:
        for module in compiled_modules():
            for name, kernel in vars(module).copy().items():
                if name.startswith("cpp_fused") and callable(kernel):
                    stack.enter_context(mock.patch.object(module, name, show(name, kernel)))
        yield
