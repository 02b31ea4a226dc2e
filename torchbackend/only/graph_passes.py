"""Our passes over the graphs that TorchInductor compiles."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph

GraphPass = Callable[[Graph], None]
"""Changes a graph in place."""


class GraphPasses(CustomGraphPass):
    """Several passes, one after the other. Torch 2.11 takes one pass."""

    def __init__(self, *passes: GraphPass) -> None:
        self.all = passes

    def __call__(self, graph: Graph) -> None:
        """Apply the passes to a graph."""
        for graph_pass in self.all:
            graph_pass(graph)
        graph.lint()

    def uuid(self) -> tuple[Any, ...]:
        """Return the key of the passes in TorchInductor's cache."""
        files = tuple(map(inspect.getfile, self.all))
        return *(graph_pass.__name__ for graph_pass in self.all), get_hash_for_files(files)


def use_passes(passes: Sequence[GraphPass]) -> None:
    """Apply these passes to every graph that is compiled from now on."""
    inductor.post_grad_custom_post_pass = GraphPasses(*passes) if passes else None


def uses_pass(graph_pass: GraphPass) -> bool:
    """Tell whether graphs that are compiled from now on get this pass."""
    passes = inductor.post_grad_custom_post_pass
    return isinstance(passes, GraphPasses) and graph_pass in passes.all
