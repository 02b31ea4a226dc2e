"""Our passes over the graphs that TorchInductor compiles."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph

GraphPass = Callable[[Graph], None]
"""Changes a graph in place."""


class _Passes(CustomGraphPass):
    """Several passes, one after the other. Torch 2.11 takes one pass."""

    def __init__(self, *passes: GraphPass) -> None:
        self.all = passes

    def __call__(self, graph: Graph) -> None:
        for graph_pass in self.all:
            graph_pass(graph)
        graph.lint()

    def uuid(self) -> tuple[Any, ...]:
        return *(graph_pass.__name__ for graph_pass in self.all), get_hash_for_files(
            tuple(map(inspect.getfile, self.all))
        )


def use_passes(passes: Sequence[GraphPass]) -> None:
    """Apply these passes to every graph that is compiled from now on."""
    inductor.post_grad_custom_post_pass = _Passes(*passes) if passes else None


def uses_pass(graph_pass: GraphPass) -> bool:
    """Tell whether graphs that are compiled from now on get this pass."""
    passes = inductor.post_grad_custom_post_pass
    return isinstance(passes, _Passes) and graph_pass in passes.all
